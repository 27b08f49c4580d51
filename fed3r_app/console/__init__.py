"""What a process shows while it works: lines of log, and progress.

Knows whether it writes to a terminal, a pipe or a file, and tells lines of Flower's
from the app's. Starts without Flower and torch; asks ``errors`` and ``words`` only.
"""
