"""The clients' learning rate, where the run config leaves it to the app."""

from __future__ import annotations

from fed3r_app.config import Config
from fed3r_app.config.versions import LR_V0_1

# For gradients of norm 1 at the most; docs/fine-tuning.md says what chose them.
_LR = {
    **{("closed form", finetune): 0.03 for finetune in ("lp", "feat", "full")},
    **{("random", "lp"): 1.0, ("random", "full"): 0.1},
}
# A momentum of 0.9 adds up ten rounds: FedAvgM's steps are smaller.
_LR_SHARE_WITH_MOMENTUM = 0.3


def learning_rate(config: Config, *, is_of_v0_1: bool) -> float:
    """Return the learning rate of a run, which may have begun with version 0.1."""
    if config.lr != "auto":
        return config.lr
    start = "random" if config.method == "none" else "closed form"
    if is_of_v0_1:
        return LR_V0_1[start, config.finetune]
    share = _LR_SHARE_WITH_MOMENTUM if config.optimizer == "fedavgm" else 1
    return _LR[start, config.finetune] * share
