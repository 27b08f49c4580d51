"""What may go together with differential privacy, and what would undo it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fed3r_app.data import LOCAL
from fed3r_app.privacy import CENTRAL

if TYPE_CHECKING:
    from fed3r_app.config import Config

# Key, what it must be, and why anything else would tell more than the noise allows.
_RULES: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("method", ("fed3r", "fed3r-rf", "fedncm"), "noise is added to the statistics"),
    ("finetune", ("none",), "fine-tuning sees the images without any noise"),
    ("client-evaluation", (False,), "it counts what is right on private images"),
    ("keep-contributions", (False,), "contributions are without noise"),
    ("resume", (False,), "a second release would spend the privacy budget again"),
    ("eval-every", ("auto", 0), "there is one release, at the end"),
)


# The size of other forms tells n and the classes of a client, and rounding a sum to
# float32 moves it by more when there are more samples.
_CENTRAL_RULES: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("privacy", ("none",), "with secure aggregation the clients add the noise"),
    ("upload", ("dense",), "the size of other forms tells how many samples there are"),
    ("upload-dtype", ("float64",), "coarser rounding moves sums by more than a sample"),
)


_DISTRIBUTED_RULES: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("privacy", ("secagg",), "a single client's share of the noise hides nothing"),
)


def check_private_settings(config: Config) -> None:
    """Raise ValueError, with a sentence, where settings would undo the privacy."""
    if not config.dp_epsilon:
        if config.dp_mode != CENTRAL:
            raise ValueError(
                f"dp-epsilon must be > 0 with dp-mode = {config.dp_mode!r}, got 0: "
                "that is no privacy at all."
            )
        return
    if not config.dp_delta < 1:
        raise ValueError(f"dp-delta must be below 1, got {config.dp_delta}.")
    if config.dataset == LOCAL and not config.given_labels:
        raise ValueError(
            f"labels must name all classes with dp-epsilon, got {config.labels!r}: a "
            "list of the nodes' own would tell of single images."
        )
    values = config.to_run_config()
    of_mode = _CENTRAL_RULES if config.dp_mode == CENTRAL else _DISTRIBUTED_RULES
    for key, allowed, reason in _RULES + of_mode:
        if values[key] not in allowed:
            raise ValueError(
                f"{key} must be {' or '.join(map(repr, allowed))} with dp-epsilon, got "
                f"{values[key]!r}: {reason}."
            )
    for key, used in (
        ("rf-sigma", config.method == "fed3r-rf"),
        ("temperature", True),
    ):
        if used and values[key] == "auto":
            raise ValueError(
                f"{key} must be a number with dp-epsilon, got 'auto': measuring it "
                "would be another release."
            )
