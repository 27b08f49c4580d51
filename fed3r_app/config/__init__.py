"""The run config: every key with its default, read, typed and validated once.

The only room that reads ``run_config``, and settings that were typed or stand in files;
``rules`` says what goes together. It needs no torch and may ask ``data``, ``files`` and
the names of ``core`` and ``privacy``. The table in ``pyproject.toml`` repeats keys and
defaults, because Flower only overrides keys that are there; a test compares the two.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, get_type_hints

from fed3r_app.config.rules import (
    SECAGG,
    WITH_REPLACEMENT,
    WITHOUT_REPLACEMENT,
    check_rules,
)
from fed3r_app.core.names import DTYPES, FORMS, METHODS
from fed3r_app.data import check_dataset, dataset_traits
from fed3r_app.data.partition import SCHEMES
from fed3r_app.data.reading import RANGE, read_intensity
from fed3r_app.privacy import CENTRAL, DISTRIBUTED, SMALLEST_GROUP

__all__ = [
    "DEFAULTS",
    "OF_ONE_RUN",
    "RETIRED",
    "SECAGG",
    "WITHOUT_REPLACEMENT",
    "WITH_REPLACEMENT",
    "Config",
    "Value",
    "asks_for_privacy",
    "check_setting",
    "is_text",
    "retired_keys",
]
Value = str | int | float | bool
# What says of one run where it is written and what is changed in it. The config.json of
# a run has all of them, and a run that repeats it none.
OF_ONE_RUN = ("run-name", "output-dir", "resume", "forget", "replace")
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


def _must_be(rule: str, allows: Callable[[Any], bool], auto: bool = False) -> Reader:
    """Return a reader that refuses, in a sentence, what a rule does not allow."""
    rule = f"'auto' or {rule}" if auto else rule

    def read(key: str, value: Value) -> Value:
        if not (allows(value) or (auto and value == "auto")):
            raise ValueError(f"{key} must be {rule}, got {value!r}.")
        return value

    return read


def _number(rule: str, allows: Callable[[float], bool], auto: bool = False) -> Reader:
    """Return a reader of finite numbers, as float, and perhaps of 'auto'."""

    def is_allowed(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value) and allows(value)

    check = _must_be(rule, is_allowed, auto)

    def read(key: str, value: Value) -> Value:
        value = check(key, value)
        return value if isinstance(value, str) else value + 0.0  # and no -0.0

    return read


def _one_of(*choices: str) -> Reader:
    return _must_be(f"one of {', '.join(choices)}", lambda value: value in choices)


def _method(key: str, value: Value) -> Value:
    # Asked now, not at import: methods may be registered later.
    return _one_of(*METHODS, "none")(key, value)


def _above_zero(auto: bool = False) -> Reader:
    return _number("a number > 0", lambda value: value > 0, auto)


def _not_negative(auto: bool = False) -> Reader:
    return _number("a number >= 0", lambda value: value >= 0, auto)


def _at_least(least: int, auto: bool = False) -> Reader:
    rule = f"a whole number >= {least}"
    return _must_be(rule, lambda value: type(value) is int and value >= least, auto)


_text = _must_be('a string such as "x"', lambda value: isinstance(value, str))


def _intensity(key: str, value: Value) -> Value:
    read_intensity(str(_text(key, value)))
    return value


def _dataset(key: str, value: Value) -> str:
    name = str(_text(key, value))
    check_dataset(name)
    return name


Text = Annotated[str, _text]
Flag = Annotated[bool, _must_be("true or false", lambda value: isinstance(value, bool))]
AutoOrFlag = Annotated[
    bool | Literal["auto"],
    _must_be("true or false", lambda value: isinstance(value, bool), auto=True),
]
Count = Annotated[int, _at_least(0)]
AutoOrCount = Annotated[int | Literal["auto"], _at_least(0, auto=True)]
Share = Annotated[float, _number("a number >= 0 and < 1", lambda x: 0 <= x < 1)]
Positive = Annotated[float, _above_zero()]
NotNegative = Annotated[float, _not_negative()]
AutoOrPositive = Annotated[float | Literal["auto"], _above_zero(auto=True)]
AutoOrNotNegative = Annotated[float | Literal["auto"], _not_negative(auto=True)]
ShareAboveHalf = Annotated[
    float, _number("a number > 0.5 and <= 1", lambda x: 0.5 < x <= 1)
]


@dataclass(frozen=True)
class Config:
    """The settings of a run; each field is the run-config key with ``_`` for ``-``."""

    dataset: Annotated[str, _dataset] = "digits"
    data_path: Text = ""
    partition: Annotated[str, _one_of(*SCHEMES)] = "by-class"
    alpha: NotNegative = 0.1
    labels: Text = ""
    test_share: Share = 0.0
    max_unreadable: Share = 0.01

    backbone: Text = "mobilenet_v2"
    weights: Text = "auto"
    image_size: AutoOrCount = "auto"
    intensity: Annotated[str, _intensity] = RANGE
    extract_dtype: Annotated[str, _one_of("float32", "bfloat16")] = "float32"

    method: Annotated[str, _method] = "fed3r"
    ridge_lambda: AutoOrPositive = "auto"
    normalize_classes: Flag = True
    fit_intercept: Flag = False
    rf_dim: Annotated[int, _at_least(1)] = 5000
    rf_sigma: AutoOrPositive = "auto"

    clients_per_round: AutoOrCount = "auto"
    sampling: Annotated[str, _one_of(WITHOUT_REPLACEMENT, WITH_REPLACEMENT)] = (
        WITHOUT_REPLACEMENT
    )
    statistics_rounds: Count = 0
    max_retries: Count = 3
    min_clients: Count = 0
    max_client_samples: Count = 0
    wait_for: Count = 0
    round_timeout: Positive = 3600.0
    eval_every: AutoOrCount = "auto"
    client_evaluation: Flag = False
    keep_contributions: Flag = False

    dp_epsilon: NotNegative = 0.0
    dp_delta: Positive = 1e-5
    dp_mode: Annotated[str, _one_of(CENTRAL, DISTRIBUTED)] = CENTRAL

    upload: Annotated[str, _one_of(*FORMS)] = "factor"
    upload_dtype: Annotated[str, _one_of(*DTYPES)] = "float32"

    privacy: Annotated[str, _one_of("none", SECAGG)] = "none"
    secagg_group: Annotated[int, _at_least(SMALLEST_GROUP)] = 10
    secagg_threshold: ShareAboveHalf = 0.6
    secagg_max_feature: AutoOrPositive = "auto"
    secagg_max_samples: Annotated[int, _at_least(1)] = 1_000_000

    finetune: Annotated[str, _one_of("none", "full", "lp", "feat")] = "none"
    optimizer: Annotated[str, _one_of("fedavg", "fedavgm", "scaffold")] = "fedavg"
    rounds: Annotated[int, _at_least(1)] = 10
    local_epochs: Annotated[int, _at_least(1)] = 1
    batch_size: Annotated[int, _at_least(1)] = 16
    lr: AutoOrPositive = "auto"
    weight_decay: NotNegative = 4e-5
    server_lr: Positive = 1.0
    server_momentum: AutoOrNotNegative = "auto"
    clip_norm: NotNegative = 1.0
    local_prior: AutoOrFlag = "auto"
    temperature: AutoOrPositive = "auto"
    batch_norm: Annotated[str, _one_of("frozen", "train")] = "frozen"
    augment: AutoOrFlag = "auto"
    guard: Flag = True
    probe: Flag = False
    refit: AutoOrFlag = "auto"
    refit_every: Count = 0

    seed: Count = 0
    device: Text = "auto"
    output_dir: Text = ""
    run_name: Text = ""
    tracker: Text = ""
    resume: Flag = False
    forget: Text = ""
    replace: Text = ""

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Value]) -> Config:
        """Return the settings in a run config, or raise ValueError with a sentence.

        A missing key has its default: what Flower hands over is complete, and older
        files are completed by `runs.formats` with the defaults of their version. The
        same object for the same run config: every message to a client asks again.
        """
        # With their types: 1, 1.0 and true are equal, and not all of them allowed.
        return cls._read(tuple((k, type(v), v) for k, v in run_config.items()))

    @classmethod
    @lru_cache(maxsize=8)
    def _read(cls, items: tuple[tuple[str, type, Value], ...]) -> Config:
        run_config = {key: value for key, _, value in items if key not in RETIRED}
        for key in run_config:
            _reader(key)  # unknown keys first: a value may be wrong because of them
        values: dict[str, Any] = {
            key.replace("-", "_"): _reader(key)(key, value)
            for key, value in run_config.items()
        }
        config = cls(**values)
        check_rules(config)
        return config

    @property
    def sends_only_protected_sums(self) -> bool:
        """Whether nothing of a client but protected sums may leave its node."""
        return self.privacy == SECAGG or self.dp_epsilon > 0

    @property
    def is_local(self) -> bool:
        """Whether the images are the nodes' own, not a part of a common data set."""
        return dataset_traits(self.dataset).of_nodes

    @property
    def input_size(self) -> int:
        """Side of the images that the network sees; 0 is the weights' own."""
        if self.image_size == "auto" or not self.image_size:
            return dataset_traits(self.dataset).image_size
        return self.image_size

    @property
    def uses_local_prior(self) -> bool:
        """Whether clients train with their own class frequencies in the loss."""
        return self.local_prior in (True, "auto")

    @property
    def augments(self) -> bool:
        """Whether clients train on random crops and mirrorings."""
        is_safe = dataset_traits(self.dataset).augments and self.moves_backbone
        return is_safe if self.augment == "auto" else self.augment

    @property
    def moves_backbone(self) -> bool:
        """Whether fine-tuning trains the backbone."""
        return self.finetune in ("full", "feat")

    @property
    def refits(self) -> bool:
        """Whether Fed3R's classifier of the fine-tuned features may be the model."""
        return self.finetune == "feat" if self.refit == "auto" else self.refit

    @property
    def per_round(self) -> int:
        """Clients a round; 0 is all at once."""
        if self.clients_per_round == "auto":
            return 0 if self.is_local else _SIMULATED_PER_ROUND
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

    def with_method(self, method: str) -> Config:
        """Return the settings with another method on the same statistics.

        Raise ValueError, with a sentence, where there is none.
        """
        maps = METHODS[self.method].random_features
        same = [name for name, each in METHODS.items() if each.random_features == maps]
        if method not in same:
            raise ValueError(
                f"method must be {' or '.join(same)} for statistics of method = "
                f"{self.method!r}, got {method!r}."
            )
        return Config.from_run_config(self.to_run_config() | {"method": method})

    @property
    def methods_of_same_statistics(self) -> tuple[str, ...]:
        """Methods whose classifiers are made of the same statistics, this one too."""
        names = []
        for name in METHODS:
            with suppress(ValueError):
                names.append(self.with_method(name).method)
        return tuple(names)

    def to_run_config(self) -> dict[str, Value]:
        """Return the run config that these settings are read from."""
        return {_kebab(name): value for name, value in asdict(self).items()}


def without_later_keys(run_config: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run config without those keys of later versions that change nothing.

    A node may have older code than the server. A new key therefore begins with a
    default by which all stays as it was: "", 0, false, "auto" or "none".
    """
    known, neutral = _readers().keys() | RETIRED.keys(), ("", 0, False, "auto", "none")
    return {k: v for k, v in run_config.items() if k in known or v not in neutral}


def asks_for_privacy(run_config: Mapping[str, Value]) -> bool:
    """Return whether a run config, good or bad, asks for any kind of privacy."""
    keys = ("privacy", "dp-epsilon", "dp-mode")
    return any(run_config.get(key, DEFAULTS[key]) != DEFAULTS[key] for key in keys)


def retired_keys(run_config: Mapping[str, Value]) -> dict[str, str]:
    """Return the keys that are set but no longer obeyed, each with the reason."""
    return {
        key: reason
        for key, (default, reason) in RETIRED.items()
        if run_config.get(key, default) != default
    }


def check_setting(key: str, value: Value) -> None:
    """Raise ValueError unless a key is known and may have that value."""
    _reader(key)(key, value)


def is_text(key: str) -> bool:
    """Return whether a key, which must be known, has texts and nothing else."""
    _reader(key)
    return get_type_hints(Config).get(key.replace("-", "_")) is str


@cache
def _readers() -> dict[str, Reader]:
    """Return the reader of each key, from the annotation of its field."""
    hints = get_type_hints(Config, include_extras=True)
    return {_kebab(name): hint.__metadata__[0] for name, hint in hints.items()}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _reader(key: str) -> Reader:
    """Return the reader of a key, or raise ValueError with the key that is meant."""
    readers = _readers()
    if key in readers:
        return readers[key]
    near = difflib.get_close_matches(key, readers, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "See docs/settings.md."
    raise ValueError(f"Run-config key {key!r} is not known. {hint}")


# Of every key, as in pyproject.toml, which Flower reads.
DEFAULTS: dict[str, Value] = Config().to_run_config()
