"""The run config of earlier versions, for files that lack a key.

A run of an earlier version stays what it was: a key that its file lacks has the value
that does what that version did, never today's default. A test compares them with 0.1's
own list, so that a new key, or a new default, gets its entry here.
"""

from fed3r_app.config import DEFAULTS, Value

# Of the keys that are new since 0.1, or whose default has changed.
OTHER_IN_V0_1: dict[str, Value] = {
    **{"test-share": 0.0, "max-unreadable": 0.0},
    **{"weights": "packaged", "image-size": 96, "intensity": "range"},
    **{"clip-norm": 0.0, "local-prior": False, "temperature": 0.1, "augment": False},
    "tracker": "",
    **{"guard": False, "refit": False, "refit-every": 0, "batch-size": 50},
}
# What ``lr = "auto"`` was: after a closed-form start, and after a random one.
LR_V0_1 = {
    **{("closed form", "lp"): 1e-3, ("closed form", "feat"): 1e-5},
    **{("closed form", "full"): 1e-5, ("random", "lp"): 0.1, ("random", "full"): 1e-3},
}
CONFIG_V0_1: dict[str, Value] = {**DEFAULTS, **OTHER_IN_V0_1}
