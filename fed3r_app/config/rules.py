"""What settings go together: one table of rules, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fed3r_app.core.names import METHODS
from fed3r_app.data import LOCAL, dataset_traits
from fed3r_app.privacy import CENTRAL, DISTRIBUTED

if TYPE_CHECKING:
    from fed3r_app.config import Config

When = Callable[["Config"], bool]
SECAGG = "secagg"
WITHOUT_REPLACEMENT, WITH_REPLACEMENT = "without-replacement", "with-replacement"


class Rule(NamedTuple):
    """What a key must be where a condition holds.

    ``must`` and ``got`` put into words what is allowed and what was found, where the
    values alone would not do. All phrases may name keys in braces.
    """

    key: str
    allowed: Collection[object]  # () where the condition says it all
    reason: str = ""
    must: str = ""
    got: str = ""

    def sentence(self, given: str) -> str:
        """Return the sentence of the error, with keys in braces for their values."""
        must = self.must or f"be {' or '.join(map(_shown, self.allowed))}"
        reason = f": {self.reason}" if self.reason else ""
        got = self.got or f"{{{self.key}}}"
        return f"{self.key} must {f'{must} {given}'.rstrip()}, got {got}{reason}."


def check_rules(config: Config) -> None:
    """Raise ValueError, with a sentence, where settings contradict each other."""
    values = config.to_run_config()
    shown = {key: _shown(value) for key, value in values.items()}
    for when, given, rule in _rules():
        if values[rule.key] not in rule.allowed and when(config):
            raise ValueError(rule.sentence(given).format_map(shown))


def _rules() -> Iterator[tuple[When, str, Rule]]:
    for when, given, *rules in _TABLE:
        yield from ((when, given, Rule(*rule)) for rule in rules)


def _shown(value: object) -> str:
    """Return a value as the user types it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _moves_backbone(config: Config) -> bool:
    return config.finetune in ("full", "feat")


def _is_secure(config: Config) -> bool:
    return config.privacy == SECAGG


def _is_private(config: Config) -> bool:
    return config.dp_epsilon > 0


def _lacks_labels(config: Config) -> bool:
    return config.is_local and not config.given_labels


def _measures_sigma(config: Config) -> bool:
    return _maps_features(config) and config.rf_sigma == "auto"


def _maps_features(config: Config) -> bool:
    return config.method in METHODS and METHODS[config.method].random_features


def _may_augment(config: Config) -> bool:
    return _moves_backbone(config) and dataset_traits(config.dataset).may_mirror


_GROUP = "a sum over a group can't be taken apart"
_CHANGE = "it changes a run that is there"
_FEATURES = "with dataset = 'synthetic', whose samples are features, and only then"
_MIRRORED = "unless finetune = 'full' or 'feat' on images that may be mirrored"
_RELEASE = "measuring it would be another release"
# The condition, the condition in words, and the rules that hold then.
_TABLE: tuple[tuple[Any, ...], ...] = (
    (
        lambda c: c.upload_dtype == "float16",
        "with upload-dtype = 'float16'",
        ("upload", ("factor",), "the entries of A pass the largest float16"),
    ),
    (
        lambda c: c.method in METHODS and not METHODS[c.method].takes_intercept,
        "with method = {method}",
        ("fit-intercept", (False,), "its classifier has no intercept"),
    ),
    (
        lambda c: c.sampling == WITHOUT_REPLACEMENT,
        "with sampling = {sampling}",
        ("statistics-rounds", (0,), "each client is asked once"),
    ),
    (
        lambda c: c.sampling == WITH_REPLACEMENT and not c.per_round,
        "with sampling = {sampling}",
        ("clients-per-round", (), "", "be >= 1", "0 (all)"),
    ),
    (
        lambda c: dataset_traits(c.dataset).gives_features != (c.backbone == "none"),
        _FEATURES,
        ("backbone", (), "", "be 'none'", "{backbone} with {dataset}"),
    ),
    (
        lambda c: not c.is_local,
        f"unless dataset = {LOCAL!r}",
        ("labels", ("",), "dataset = {dataset} has its own classes"),
    ),
    (
        lambda c: len(set(c.given_labels)) < len(c.given_labels),
        "",
        ("labels", (), "", "differ"),
    ),
    (
        lambda c: c.resume and not c.run_name,
        "",
        ("run-name", (), "", "name the run to resume"),
    ),
    (
        lambda c: not c.resume,
        "unless resume = true",
        ("forget", ("",), _CHANGE),
        ("replace", ("",), _CHANGE),
    ),
    (
        lambda c: c.forget,
        "with forget = {forget}",
        ("replace", ("",), "one change at a time"),
    ),
    # What would show the server single clients under secure aggregation.
    (
        _is_secure,
        "with privacy = {privacy}",
        ("method", METHODS, "there are no sums to keep secret"),
        ("sampling", (WITHOUT_REPLACEMENT,), "groups are disjoint"),
        ("client-evaluation", (False,), "it would show how many images it has"),
        ("keep-contributions", (False,), "there are only sums over groups to keep"),
        ("forget", ("",), _GROUP),
        ("replace", ("",), _GROUP),
        ("max-client-samples", (0,), "the number of a client's images is secret"),
        ("finetune", ("none",), "each client's weights would travel in the clear"),
    ),
    (
        lambda c: _is_secure(c) and _measures_sigma(c),
        "with privacy = {privacy}",
        ("rf-sigma", (), "each would send the sum of its features", "be a number"),
    ),
    (
        lambda c: _is_secure(c) and _lacks_labels(c),
        "with privacy = {privacy}",
        ("labels", (), "each client would show which it has", "name all classes"),
    ),
    # Fine-tuning.
    (
        lambda c: c.method == "none",
        "with method = 'none'",
        (
            *("finetune", ("full", "lp"), "a random classifier has to be trained"),
            "be full or lp",
        ),
        ("client-evaluation", (False,), "it is of the classifier in closed form"),
    ),
    (
        _maps_features,
        "with method = {method}",
        (
            *("finetune", ("none", "lp")),
            *("random features are those of a fixed backbone", "be none or lp"),
        ),
    ),
    (
        lambda c: not _moves_backbone(c),
        "unless finetune = 'full' or 'feat'",
        *(
            (key, (False,), "the features stay the same", "", "finetune = {finetune}")
            for key in ("probe", "refit")
        ),
    ),
    (
        lambda c: c.backbone in ("pixels", "none"),
        "with backbone = {backbone}",
        (
            *("finetune", ("none", "lp")),
            *("there are no weights to train", "be none or lp"),
        ),
    ),
    (
        lambda c: not _may_augment(c),
        _MIRRORED,
        ("augment", (False,), "", "", "dataset = {dataset}, finetune = {finetune}"),
    ),
    (
        lambda c: c.optimizer != "fedavgm",
        "unless optimizer = 'fedavgm'",
        (
            *("server-momentum", ("auto", 0), "", "be auto or 0"),
            "{server-momentum} with {optimizer}",
        ),
    ),
    # What would undo differential privacy.
    (
        lambda c: not _is_private(c) and c.dp_mode != CENTRAL,
        "with dp-mode = {dp-mode}",
        ("dp-epsilon", (), "that is no privacy at all", "be > 0"),
    ),
    (
        lambda c: _is_private(c) and not c.dp_delta < 1,
        "",
        ("dp-delta", (), "", "be below 1"),
    ),
    (
        lambda c: _is_private(c) and _lacks_labels(c),
        "with dp-epsilon",
        (
            *("labels", (), "a list of the nodes' own would reveal single images"),
            "name all classes",
        ),
    ),
    (
        _is_private,
        "with dp-epsilon",
        ("method", METHODS, "noise is added to the statistics"),
        ("finetune", ("none",), "fine-tuning sees the images without any noise"),
        ("client-evaluation", (False,), "it counts what is right on private images"),
        ("keep-contributions", (False,), "contributions are without noise"),
        ("resume", (False,), "a second release would spend the privacy budget again"),
        ("eval-every", ("auto", 0), "there is one release, at the end"),
    ),
    # The size of other forms tells n and the classes of a client, and rounding a sum
    # to float32 moves it by more when there are more samples.
    (
        lambda c: _is_private(c) and c.dp_mode == CENTRAL,
        "with dp-epsilon",
        ("privacy", ("none",), "with secure aggregation the clients add the noise"),
        ("upload", ("dense",), "the size of other forms reveals how many samples"),
        ("upload-dtype", ("float64",), "coarser rounding moves sums by over a sample"),
    ),
    (
        lambda c: _is_private(c) and c.dp_mode == DISTRIBUTED,
        "with dp-epsilon",
        ("privacy", (SECAGG,), "a single client's share of the noise hides nothing"),
    ),
    (
        lambda c: _is_private(c) and _measures_sigma(c),
        "with dp-epsilon",
        ("rf-sigma", (), _RELEASE, "be a number"),
    ),
    (
        lambda c: _is_private(c) and c.temperature == "auto",
        "with dp-epsilon",
        ("temperature", (), _RELEASE, "be a number"),
    ),
)
