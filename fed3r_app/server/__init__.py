"""A run at the server, phase by phase; ``run`` lists them in order.

Builds strategies from the config, keeps the run on disk, evaluates. The mathematics is
``core``'s and the messages are the strategies'; may ask every room but the apps.
"""
