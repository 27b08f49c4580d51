"""The run config of earlier versions, for files that lack a key.

A run of an earlier version stays what it was: a key that its file lacks has the value
that does what that version did, never today's default. A test compares them with 0.1's
own list, so that a new key, or a new default, gets its entry here.
"""

from fed3r_app.config import DEFAULTS, Value

# Of the keys that are new since 0.1, or whose default has changed.
OTHER_IN_V0_1: dict[str, Value] = {
    **{"test-share": 0.0, "max-unreadable": 0.0},
    **{"image-size": 96, "intensity": "range"},
}
CONFIG_V0_1: dict[str, Value] = {**DEFAULTS, **OTHER_IN_V0_1}
