"""What settings go together: the rules in one list, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fed3r_app.core.names import METHODS
from fed3r_app.data import LOCAL, dataset_traits
from fed3r_app.data.partition import WITHOUT_CLIENTS
from fed3r_app.privacy import CENTRAL

if TYPE_CHECKING:
    from fed3r_app.config import Config

SECAGG = "secagg"
WITHOUT_REPLACEMENT, WITH_REPLACEMENT = "without-replacement", "with-replacement"


class Rule(NamedTuple):
    """What a key must be under the condition that ``given`` has in words.

    ``must`` and ``got`` put into words what is allowed and what was found, where the
    values alone would not do. All phrases may name keys in braces.
    """

    key: str
    allowed: tuple[object, ...]  # () where the condition says it all
    given: str = ""
    reason: str = ""
    must: str = ""
    got: str = ""

    def sentence(self) -> str:
        """Return the sentence of the error, with keys in braces for their values."""
        must = self.must or f"be {' or '.join(map(_shown, self.allowed))}"
        reason = f": {self.reason}" if self.reason else ""
        got = self.got or f"{{{self.key}}}"
        return f"{self.key} must {f'{must} {self.given}'.rstrip()}, got {got}{reason}."


def check_rules(config: Config) -> None:
    """Raise ValueError, with a sentence, where settings contradict each other."""
    values = config.to_run_config()
    for rules in (_basic, _secure, _fine_tuning, _private):
        for rule in rules(config):
            if values[rule.key] not in rule.allowed:
                shown = {key: _shown(value) for key, value in values.items()}
                raise ValueError(rule.sentence().format_map(shown))


def _shown(value: object) -> str:
    """Return a value as the user types it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _lacks_labels(config: Config) -> bool:
    return config.is_local and not config.given_labels


def _maps_features(config: Config) -> bool:
    return config.method in METHODS and METHODS[config.method].random_features


def _measures_sigma(config: Config) -> bool:
    return _maps_features(config) and config.rf_sigma == "auto"


def _basic(c: Config) -> Iterator[Rule]:
    traits = dataset_traits(c.dataset)
    if c.upload_dtype == "float16":
        reason = "the entries of A pass the largest float16"
        yield Rule("upload", ("factor",), "with upload-dtype = 'float16'", reason)
    if c.method in METHODS and not METHODS[c.method].takes_intercept:
        reason = "its classifier has no intercept"
        yield Rule("fit-intercept", (False,), "with method = {method}", reason)
    given = "with sampling = {sampling}"
    if c.sampling == WITHOUT_REPLACEMENT:
        yield Rule("statistics-rounds", (0,), given, "each client is asked once")
    elif not c.per_round:
        yield Rule("clients-per-round", (), given, must="be >= 1", got="0 (all)")
    if traits.gives_features != (c.backbone == "none"):
        given = "with dataset = 'synthetic', whose samples are features, and only then"
        got = "{backbone} with {dataset}"
        yield Rule("backbone", (), given, must="be 'none'", got=got)
    # A run that is resumed has the size it was begun with.
    if c.backbone == "pixels" and not (c.input_size or c.resume):
        given, reason = "with backbone = 'pixels'", "no weights say which size"
        yield Rule("image-size", (), given, reason, "be a number > 0")
    if not traits.may_hold_out:
        given = "unless dataset = 'imagefolder' or 'local'"
        yield Rule("test-share", (0.0,), given, "{dataset} has a test set or none")
    if c.is_local and (c.privacy == SECAGG or c.dp_epsilon):
        how = "privacy = {privacy}" if c.privacy == SECAGG else "dp-epsilon"
        reason = (
            "no node is asked how it does on test images; give the server some with "
            "data-path"
        )
        yield Rule("test-share", (0.0,), f"with {how} and the nodes' images", reason)
    if not traits.has_clients:
        given, reason = "with dataset = {dataset}", "it has no natural clients"
        yield Rule("partition", WITHOUT_CLIENTS, given, reason)
    if not c.is_local:
        reason = "dataset = {dataset} has its own classes"
        yield Rule("labels", ("",), f"unless dataset = {LOCAL!r}", reason)
    if len(set(c.given_labels)) < len(c.given_labels):
        yield Rule("labels", (), must="differ")
    if c.resume and not c.run_name:
        yield Rule("run-name", (), must="name the run to resume")
    if not c.resume:
        for key in ("forget", "replace"):
            reason = "it changes a run that is there"
            yield Rule(key, ("",), "unless resume = true", reason)
    if c.forget:
        yield Rule("replace", ("",), "with forget = {forget}", "one change at a time")


def _secure(c: Config) -> Iterator[Rule]:
    """Yield what would show the server single clients under secure aggregation."""
    if c.privacy != SECAGG:
        return
    alone = "a sum over a group can't be taken apart"
    for key, allowed, reason in (
        ("method", tuple(METHODS), "there are no sums to keep secret"),
        ("sampling", (WITHOUT_REPLACEMENT,), "groups are disjoint"),
        ("client-evaluation", (False,), "it would show how many images it has"),
        ("keep-contributions", (False,), "there are only sums over groups to keep"),
        ("forget", ("",), alone),
        ("replace", ("",), alone),
        ("max-client-samples", (0,), "the number of a client's images is secret"),
        ("finetune", ("none",), "each client's weights would travel in the clear"),
    ):
        yield Rule(key, allowed, "with privacy = {privacy}", reason)
    if _measures_sigma(c):
        reason = "each would send the sum of its features"
        yield Rule("rf-sigma", (), "with privacy = {privacy}", reason, "be a number")
    if _lacks_labels(c):
        reason, must = "each client would show which it has", "name all classes"
        yield Rule("labels", (), "with privacy = {privacy}", reason, must)


def _fine_tuning(c: Config) -> Iterator[Rule]:
    if c.method == "none":
        given, reason = "with method = 'none'", "a random classifier has to be trained"
        yield Rule("finetune", ("full", "lp"), given, reason, "be full or lp")
        reason = "it is of the classifier in closed form"
        yield Rule("client-evaluation", (False,), given, reason)
    if _maps_features(c):
        reason = "random features are those of a fixed backbone"
        given, must = "with method = {method}", "be none or lp"
        yield Rule("finetune", ("none", "lp"), given, reason, must)
    if not c.moves_backbone:
        given, reason = (
            "unless finetune = 'full' or 'feat'",
            "the features stay the same",
        )
        got = "finetune = {finetune}"
        for key, allowed in (
            ("probe", (False,)),
            ("refit", ("auto", False)),
            ("refit-every", (0,)),
        ):
            yield Rule(key, allowed, given, reason, got=got)
    if c.backbone in ("pixels", "none"):
        given, reason = "with backbone = {backbone}", "there are no weights to train"
        yield Rule("finetune", ("none", "lp"), given, reason, "be none or lp")
    if "+" in c.backbone:
        given, reason = "with backbone = {backbone}", "one network can be trained"
        yield Rule("finetune", ("none",), given, reason)
    if not (c.moves_backbone and dataset_traits(c.dataset).may_mirror):
        given = "unless finetune = 'full' or 'feat' on images that may be mirrored"
        got = "dataset = {dataset}, finetune = {finetune}"
        yield Rule("augment", ("auto", False), given, got=got)
    if c.optimizer != "fedavgm":
        given, must = "unless optimizer = 'fedavgm'", "be auto or 0"
        got = "{server-momentum} with {optimizer}"
        yield Rule("server-momentum", ("auto", 0), given, must=must, got=got)


def _private(c: Config) -> Iterator[Rule]:
    """Yield what would undo differential privacy."""
    if not c.dp_epsilon:
        if c.dp_mode != CENTRAL:
            given, reason = "with dp-mode = {dp-mode}", "that is no privacy at all"
            yield Rule("dp-epsilon", (), given, reason, "be > 0")
        return
    given = "with dp-epsilon"
    if not c.dp_delta < 1:
        yield Rule("dp-delta", (), must="be below 1")
    if _lacks_labels(c):
        reason = "a list of the nodes' own would reveal single images"
        yield Rule("labels", (), given, reason, "name all classes")
    noisy = tuple(name for name, method in METHODS.items() if method.takes_noise)
    of_method = "noise is added to the statistics"
    if c.method in METHODS:
        of_method = "noise would make its covariance indefinite"
    for key, allowed, reason in (
        ("method", noisy, of_method),
        ("finetune", ("none",), "fine-tuning sees the images without any noise"),
        ("client-evaluation", (False,), "it counts what is right on private images"),
        ("keep-contributions", (False,), "contributions are without noise"),
        ("resume", (False,), "a second release would spend the privacy budget again"),
        ("eval-every", ("auto", 0), "there is one release, at the end"),
    ):
        yield Rule(key, allowed, given, reason)
    if c.dp_mode == CENTRAL:
        # The size of other forms shows n and the classes of a client, and rounding a
        # sum to float32 moves it by more when there are more samples.
        for key, allowed, reason in (
            ("privacy", ("none",), "with secure aggregation the clients add the noise"),
            ("upload", ("dense",), "the size of other forms reveals how many samples"),
        ):
            yield Rule(key, allowed, given, reason)
        reason = "coarser rounding moves sums by over a sample"
        yield Rule("upload-dtype", ("float64",), given, reason)
    else:
        reason = "a single client's share of the noise hides nothing"
        yield Rule("privacy", (SECAGG,), given, reason)
    if _measures_sigma(c):
        reason = "measuring it would be another release"
        yield Rule("rf-sigma", (), given, reason, "be a number")
