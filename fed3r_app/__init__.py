"""Fed3R on Flower: closed-form federated image classification.

The two Flower apps, and a room for each concern; a room's docstring says what lives in
it and which rooms it may ask. New modules belong into a room, not here. This module
imports nothing, so that ``strategies`` and ``clients`` can import the rooms below them.
"""
