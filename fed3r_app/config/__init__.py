"""The run config: every key read, typed and validated once.

The only module that reads ``run_config``. The keys, their defaults and a comment each
stand in ``pyproject.toml``, because Flower only overrides keys that are there.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_type_hints

from fed3r_app.config.rules import check_private_settings
from fed3r_app.core.names import DTYPES, FORMS
from fed3r_app.data import LOCAL, check_dataset
from fed3r_app.privacy import CENTRAL, DISTRIBUTED, SMALLEST_GROUP

Value = str | int | float | bool
Reader = Callable[[str, Value], Value]


# How often ``eval-every = "auto"`` evaluates, about: with more than so many features
# less often, but not less than that.
_EVALUATIONS, _MANY_FEATURES, _FEWEST_EVALUATIONS = 20, 2000, 4
# ``clients-per-round = "auto"`` in simulation: enough rounds to see the curve.
_SIMULATED_PER_ROUND = 2
# Keys of earlier versions, and why they are ignored; their default changed nothing.
RETIRED: dict[str, tuple[Value, str]] = {
    "early-stopping": (0, "a model must not be chosen on test images")
}
SECAGG = "secagg"
WITHOUT_REPLACEMENT, WITH_REPLACEMENT = "without-replacement", "with-replacement"


def _text(key: str, value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{key} must be a string such as "x", got {value!r}.')
    return value


def _dataset(key: str, value: Value) -> str:
    check_dataset(_text(key, value))
    return _text(key, value)


def _flag(key: str, value: Value) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, got {value!r}.")
    return value


def _one_of(*choices: str) -> Reader:
    def read(key: str, value: Value) -> Value:
        if value not in choices:
            raise ValueError(
                f"{key} must be one of {', '.join(choices)}, got {value!r}."
            )
        return value

    return read


def _at_least(least: int) -> Reader:
    def read(key: str, value: Value) -> int:
        if type(value) is not int or value < least:
            raise ValueError(f"{key} must be a whole number >= {least}, got {value!r}.")
        return value

    return read


def _positive(key: str, value: Value, rule: str = "a number > 0") -> float:
    if type(value) in (int, float) and 0 < float(value) < math.inf:
        return float(value)
    raise ValueError(f"{key} must be {rule}, got {value!r}.")


def _not_negative(key: str, value: Value, rule: str = "a number >= 0") -> float:
    is_zero = type(value) in (int, float) and value == 0
    return 0.0 if is_zero else _positive(key, value, rule)


def _share_above_half(key: str, value: Value) -> float:
    if type(value) in (int, float) and 0.5 < float(value) <= 1:
        return float(value)
    raise ValueError(f"{key} must be a number > 0.5 and <= 1, got {value!r}.")


def _auto_or_positive(key: str, value: Value) -> Value:
    return value if value == "auto" else _positive(key, value, "'auto' or a number > 0")


def _auto_or_not_negative(key: str, value: Value) -> Value:
    rule = "'auto' or a number >= 0"
    return value if value == "auto" else _not_negative(key, value, rule)


def _auto_or_count(key: str, value: Value) -> Value:
    if value == "auto" or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"{key} must be 'auto' or a whole number >= 0, got {value!r}.")


Text = Annotated[str, _text]


Flag = Annotated[bool, _flag]


Count = Annotated[int, _at_least(0)]


Positive = Annotated[float, _positive]


AutoOrPositive = Annotated[float | Literal["auto"], _auto_or_positive]


@dataclass(frozen=True)
class Config:
    """The settings of a run; each field is the run-config key with ``_`` for ``-``."""

    dataset: Annotated[str, _dataset]
    data_path: Text
    partition: Annotated[str, _one_of("iid", "dirichlet", "by-class", "natural")]
    alpha: Annotated[float, _not_negative]
    labels: Text

    backbone: Text
    weights: Text
    image_size: Count
    extract_dtype: Annotated[str, _one_of("float32", "bfloat16")]

    method: Annotated[str, _one_of("fed3r", "fed3r-rf", "fedncm", "none")]
    ridge_lambda: AutoOrPositive
    normalize_classes: Flag
    fit_intercept: Flag
    rf_dim: Annotated[int, _at_least(1)]
    rf_sigma: AutoOrPositive

    clients_per_round: Annotated[int | Literal["auto"], _auto_or_count]
    sampling: Annotated[str, _one_of(WITHOUT_REPLACEMENT, WITH_REPLACEMENT)]
    statistics_rounds: Count
    max_retries: Count
    min_clients: Count
    max_client_samples: Count
    wait_for: Count
    round_timeout: Positive
    eval_every: Annotated[int | Literal["auto"], _auto_or_count]
    client_evaluation: Flag
    keep_contributions: Flag

    dp_epsilon: Annotated[float, _not_negative]
    dp_delta: Positive
    dp_mode: Annotated[str, _one_of(CENTRAL, DISTRIBUTED)]

    upload: Annotated[str, _one_of(*FORMS)]
    upload_dtype: Annotated[str, _one_of(*DTYPES)]

    privacy: Annotated[str, _one_of("none", SECAGG)]
    secagg_group: Annotated[int, _at_least(SMALLEST_GROUP)]
    secagg_threshold: Annotated[float, _share_above_half]
    secagg_max_feature: AutoOrPositive
    secagg_max_samples: Annotated[int, _at_least(1)]

    finetune: Annotated[str, _one_of("none", "full", "lp", "feat")]
    optimizer: Annotated[str, _one_of("fedavg", "fedavgm", "scaffold")]
    rounds: Annotated[int, _at_least(1)]
    local_epochs: Annotated[int, _at_least(1)]
    batch_size: Annotated[int, _at_least(1)]
    lr: AutoOrPositive
    weight_decay: Annotated[float, _not_negative]
    server_lr: Positive
    server_momentum: Annotated[float | Literal["auto"], _auto_or_not_negative]
    temperature: AutoOrPositive
    batch_norm: Annotated[str, _one_of("frozen", "train")]
    augment: Flag
    probe: Flag
    refit: Flag

    seed: Count
    device: Text
    output_dir: Text
    run_name: Text
    resume: Flag
    forget: Text
    replace: Text

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Value]) -> Config:
        """Return the settings in a run config, or raise ValueError with a sentence.

        The same object for the same run config: every message to a client asks again.
        """
        # With their types: 1, 1.0 and true are equal, and not all of them allowed.
        return cls._read(tuple((k, type(v), v) for k, v in run_config.items()))

    @classmethod
    @lru_cache(maxsize=8)
    def _read(cls, items: tuple[tuple[str, type, Value], ...]) -> Config:
        run_config = {key: value for key, _, value in items if key not in RETIRED}
        readers = _readers()
        for key in run_config:
            if key not in readers:
                raise ValueError(_unknown(key, tuple(readers)))
        for key in readers:
            if key not in run_config:
                raise ValueError(f"Run-config key {key!r} is missing.")
        values: dict[str, Any] = {
            _snake(key): read(key, run_config[key]) for key, read in readers.items()
        }
        config = cls(**values)
        config._check_together()
        return config

    @property
    def per_round(self) -> int:
        """Clients a round; 0 is all at once."""
        if self.clients_per_round == "auto":
            return 0 if self.dataset == LOCAL else _SIMULATED_PER_ROUND
        return self.clients_per_round

    @property
    def given_labels(self) -> tuple[str, ...]:
        """The classes that the run config names, in its order; () if it names none."""
        return tuple(name.strip() for name in self.labels.split(",") if name.strip())

    def evaluation_interval(self, rounds: int, dim: int = 0) -> int:
        """Return after how many rounds to evaluate ``dim`` features; 0: at the end."""
        if self.dp_epsilon:  # one release, one evaluation
            return 0
        if self.eval_every != "auto":
            return self.eval_every
        number = _EVALUATIONS * _MANY_FEATURES // max(dim, _MANY_FEATURES)
        return -(-rounds // max(number, _FEWEST_EVALUATIONS))

    def to_run_config(self) -> dict[str, Value]:
        """Return the run config that these settings are read from."""
        return {_kebab(name): value for name, value in asdict(self).items()}

    def _check_together(self) -> None:
        """Refuse settings that contradict each other."""
        if self.upload_dtype == "float16" and self.upload != "factor":
            raise ValueError(
                "upload-dtype = 'float16' must go with upload = 'factor', got "
                f"{self.upload!r}: the entries of A pass the largest float16."
            )
        if self.fit_intercept and self.method == "fedncm":
            raise ValueError(
                "fit-intercept must be false with method = 'fedncm', got true: class "
                "means have no intercept."
            )
        if self.sampling == WITHOUT_REPLACEMENT and self.statistics_rounds:
            raise ValueError(
                f"statistics-rounds must be 0 with sampling = {WITHOUT_REPLACEMENT!r}, "
                f"got {self.statistics_rounds}: there are ceil(clients / "
                "clients-per-round) rounds."
            )
        if self.sampling == WITH_REPLACEMENT and not self.per_round:
            raise ValueError(
                f"clients-per-round must be >= 1 with sampling = {WITH_REPLACEMENT!r}, "
                "got 0 (all)."
            )
        if self.dataset.startswith("synthetic") != (self.backbone == "none"):
            raise ValueError(
                "backbone must be 'none' with dataset = 'synthetic', whose samples are "
                f"features, and only then, got {self.backbone!r} with "
                f"{self.dataset!r}."
            )
        if self.labels and self.dataset != LOCAL:
            raise ValueError(
                f"labels must be '' unless dataset = {LOCAL!r}, got {self.labels!r}: "
                f"dataset = {self.dataset!r} has its own classes."
            )
        if len(set(self.given_labels)) < len(self.given_labels):
            raise ValueError(f"labels must differ, got {self.labels!r}.")
        if self.resume and not self.run_name:
            raise ValueError("run-name must name the run to resume, got ''.")
        for key in ("forget", "replace"):
            if (client := getattr(self, key)) and not self.resume:
                raise ValueError(
                    f"{key} must be '' unless resume = true, got {client!r}: it "
                    "changes a run that is there."
                )
        if self.forget and self.replace:
            raise ValueError(
                f"replace must be '' with forget = {self.forget!r}, got "
                f"{self.replace!r}: one change at a time."
            )
        self._check_privacy()
        self._check_fine_tuning()
        check_private_settings(self)

    def _check_privacy(self) -> None:
        """Refuse what would tell the server of single clients under secagg."""
        if self.privacy != SECAGG:
            return
        refused = {
            "method": (self.method, "none", "there are no sums to keep secret"),
            "rf-sigma": (
                self.rf_sigma if self.method == "fed3r-rf" else 1.0,
                "auto",
                "each client would tell the sum of its features",
            ),
            "sampling": (self.sampling, WITH_REPLACEMENT, "groups are disjoint"),
            "client-evaluation": (
                self.client_evaluation,
                True,
                "each client would tell how many images it has",
            ),
            "keep-contributions": (
                self.keep_contributions,
                True,
                "there are only sums over groups to keep",
            ),
        }
        for key, (value, bad, reason) in refused.items():
            if value == bad:
                raise ValueError(
                    f"{key} must not be {bad!r} with privacy = {SECAGG!r}: {reason}."
                )
        for key, only, reason in (
            ("forget", "", "a sum over a group can't be taken apart"),
            ("replace", "", "a sum over a group can't be taken apart"),
            ("max-client-samples", 0, "nobody sees what a single client has"),
            ("finetune", "none", "each client's weights would travel in the clear"),
        ):
            if (value := getattr(self, _snake(key))) != only:
                raise ValueError(
                    f"{key} must be {only!r} with privacy = {SECAGG!r}, got {value!r}: "
                    f"{reason}."
                )
        if self.dataset == LOCAL and not self.given_labels:
            raise ValueError(
                f"labels must name all classes with privacy = {SECAGG!r}, got "
                f"{self.labels!r}: each client would tell the server which it has."
            )

    def _check_fine_tuning(self) -> None:
        """Refuse settings of the fine-tuning that contradict each other."""
        if self.method == "none":
            if self.finetune in ("none", "feat"):
                raise ValueError(
                    "finetune must be full or lp with method = 'none', got "
                    f"{self.finetune!r}: a random classifier has to be trained."
                )
            if self.client_evaluation:
                raise ValueError(
                    "client-evaluation must be false with method = 'none', got true: "
                    "it is of the classifier in closed form."
                )
        if self.method == "fed3r-rf" and self.finetune in ("full", "feat"):
            raise ValueError(
                "finetune must be none or lp with method = 'fed3r-rf', got "
                f"{self.finetune!r}: random features are those of a fixed backbone."
            )
        moves_backbone = self.finetune in ("full", "feat")
        if (self.probe or self.refit) and not moves_backbone:
            raise ValueError(
                "probe and refit must be false unless finetune = 'full' or 'feat', got "
                f"finetune = {self.finetune!r}: the features stay the same."
            )
        if moves_backbone and self.backbone in ("pixels", "none"):
            raise ValueError(
                f"finetune must be none or lp with backbone = {self.backbone!r}, got "
                f"{self.finetune!r}: there are no weights to train."
            )
        if self.augment and (not moves_backbone or self.dataset.startswith("digits")):
            raise ValueError(
                "augment must be false unless finetune = 'full' or 'feat' on images "
                f"that may be mirrored, got dataset = {self.dataset!r}, finetune = "
                f"{self.finetune!r}."
            )
        has_momentum = self.server_momentum not in ("auto", 0)
        if has_momentum and self.optimizer != "fedavgm":
            raise ValueError(
                "server-momentum must be auto or 0 unless optimizer = 'fedavgm', got "
                f"{self.server_momentum} with {self.optimizer!r}."
            )


def retired_keys(run_config: Mapping[str, Value]) -> dict[str, str]:
    """Return the keys that are set but no longer obeyed, each with the reason."""
    return {
        key: reason
        for key, (default, reason) in RETIRED.items()
        if run_config.get(key, default) != default
    }


def check_setting(key: str, value: Value) -> None:
    """Raise ValueError unless a key is known and may have that value."""
    readers = _readers()
    if key not in readers:
        raise ValueError(_unknown(key, tuple(readers)))
    readers[key](key, value)


def _readers() -> dict[str, Reader]:
    """Return the reader of each key, from the annotation of its field."""
    hints = get_type_hints(Config, include_extras=True)
    return {_kebab(name): hint.__metadata__[0] for name, hint in hints.items()}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _snake(key: str) -> str:
    return key.replace("-", "_")


def _unknown(key: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "See the table in README.md."
    return f"Run-config key {key!r} is not known. {hint}"
