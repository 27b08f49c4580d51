"""The run config: what is accepted, and the sentence for what is not."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fed3r_app.config import DEFAULTS, Config, check_setting, retired_keys
from tests.harness.runs import kebab

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def read(**changes: Any) -> Any:
    return Config.from_run_config(DEFAULTS | kebab(changes))


def given(settings: str) -> dict[str, Any]:
    """Return settings such as "probe=true seed=3" with their types."""
    pairs = (setting.split("=") for setting in settings.split())
    return {key: yaml.safe_load(value) for key, value in pairs}


def test_pyproject_repeats_the_defaults_in_their_order() -> None:
    table = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    assert list(table.items()) == list(DEFAULTS.items())
    types = [type(value) for value in table.values()]
    assert types == [type(value) for value in DEFAULTS.values()]


def test_settings_survive_the_way_to_a_run_config_and_back() -> None:
    assert read().to_run_config() == DEFAULTS
    config = replace(read(), ridge_lambda=0.01, clients_per_round=7, run_name="a")
    assert Config.from_run_config(config.to_run_config()) == config


def test_whole_numbers_are_read_as_numbers_where_a_fraction_may_stand() -> None:
    assert read(ridge_lambda=1).ridge_lambda == 1.0
    assert isinstance(read(alpha=1).alpha, float)


GOES_WITH = {"dp-epsilon": {"upload": "dense", "upload-dtype": "float64"}}


@pytest.mark.parametrize("key", DEFAULTS)
def test_every_key_refuses_a_value_of_another_kind_by_name(key: Any) -> None:
    refused = []
    for value in (1.5, "no such value"):
        try:
            read(**{**GOES_WITH.get(key, {}), key: value})
        except ValueError as error:
            refused.append((value, str(error)))
    assert refused
    for value, sentence in refused:
        assert sentence.startswith(f"{key} must ")
        assert repr(value) in sentence


@pytest.mark.parametrize("key", DEFAULTS)
def test_a_missing_key_has_its_default(key: Any) -> None:
    rest = {name: value for name, value in DEFAULTS.items() if name != key}
    assert Config.from_run_config(rest) == read()


def test_a_typo_is_answered_with_the_nearest_key() -> None:
    with pytest.raises(ValueError, match=r"'ridge-lamda' is not known.*'ridge-lambda'"):
        read(ridge_lamda=1.0)
    with pytest.raises(ValueError, match=r"'qqq' is not known. See"):
        read(qqq=1)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("ridge-lambda", -1, "'auto' or a number > 0, got -1"),
        ("ridge-lambda", 0, "'auto' or a number > 0, got 0"),
        ("ridge-lambda", float("nan"), "got nan"),
        ("ridge-lambda", float("inf"), "got inf"),
        ("ridge-lambda", True, "got True"),
        ("ridge-lambda", "0.01", "got '0.01'"),
        ("rf-sigma", -2.0, "'auto' or a number > 0, got -2.0"),
        ("rf-dim", 0, "a whole number >= 1, got 0"),
        ("alpha", -1, "a number >= 0, got -1"),
        ("round-timeout", 0.0, "a number > 0, got 0.0"),
        ("clients-per-round", -1, "a whole number >= 0, got -1"),
        ("clients-per-round", 2.0, "a whole number >= 0, got 2.0"),
        ("clients-per-round", True, "a whole number >= 0, got True"),
        ("seed", -1, "a whole number >= 0, got -1"),
        ("resume", 1, "true or false, got 1"),
        ("run-name", 7, 'a string such as "x", got 7'),
        ("dataset", "mnist", "local, synthetic, got 'mnist'"),
        ("partition", "by_class", "iid, dirichlet, by-class, natural, got 'by_class'"),
        ("upload-dtype", "int8", "one of float32, float64, float16, got 'int8'"),
        ("finetune", "all", "one of none, full, lp, feat, got 'all'"),
        ("optimizer", "adam", "one of fedavg, fedavgm, scaffold, got 'adam'"),
        ("rounds", 0, "a whole number >= 1, got 0"),
        ("local-epochs", 0, "a whole number >= 1, got 0"),
        ("batch-size", 0, "a whole number >= 1, got 0"),
        ("lr", 0, "'auto' or a number > 0, got 0"),
        ("lr", float("nan"), "'auto' or a number > 0, got nan"),
        ("weight-decay", -1e-4, "a number >= 0, got -0.0001"),
        ("weight-decay", False, "a number >= 0, got False"),
        ("server-lr", 0.0, "a number > 0, got 0.0"),
        ("server-momentum", -0.9, "'auto' or a number >= 0, got -0.9"),
        ("temperature", 0, "'auto' or a number > 0, got 0"),
        ("batch-norm", "eval", "one of frozen, train, got 'eval'"),
    ],
)
def test_a_bad_value_gets_the_rule_and_the_value(
    key: str, value: Any, rule: str
) -> None:
    with pytest.raises(ValueError) as caught:
        read(**{key: value})
    assert str(caught.value).startswith(f"{key} must be ")
    assert str(caught.value).endswith(f"{rule}.")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ("upload=packed upload-dtype=float16", "with upload-dtype = 'float16'"),
        ("upload=dense upload-dtype=float16", "with upload-dtype = 'float16'"),
        (
            'dataset="local" labels="a,b" privacy="secagg" test-share=0.2',
            r"test-share must be 0\.0 with privacy = 'secagg' and the nodes' images, "
            r"got 0\.2: .* give the server some with data-path",
        ),
        (
            'dataset="local" labels="a,b" dp-epsilon=2.0 test-share=0.2',
            r"test-share must be 0\.0 with dp-epsilon and the nodes' images, got 0\.2",
        ),
        *(
            (
                f'dataset="{dataset}" backbone="pixels" image-size={size}',
                f"image-size must be a number > 0 with backbone = 'pixels', got {got}:",
            )
            for dataset in ("local", "imagefolder", "grocery")
            for size, got in (('"auto"', "'auto'"), ("0", "0"))
        ),
        ("method=fedncm fit-intercept=true", "fit-intercept must be false"),
        (
            "method=lda fit-intercept=true",
            "fit-intercept must be false with method = 'lda', got true: its classifier",
        ),
        (
            "method=lda dp-epsilon=1 upload=dense upload-dtype=float64",
            "method must be 'fed3r' or 'fed3r-rf' or 'fedncm' with dp-epsilon, got "
            "'lda': noise would make its covariance indefinite",
        ),
        (
            "method=none finetune=lp dp-epsilon=1 upload=dense",
            "or 'fedncm' with dp-epsilon, got 'none': noise is added to the statistics",
        ),
        ("statistics-rounds=3", "statistics-rounds must be 0"),
        ("sampling=with-replacement clients-per-round=0", "per-round must be >= 1"),
        ("resume=true", "run-name must name the run to resume"),
        ("method=none", "finetune must be full or lp with method = 'none', got 'none'"),
        ("method=none finetune=feat", "= 'none', got 'feat': a random classifier has"),
        (
            "method=none finetune=lp client-evaluation=true",
            "client-evaluation must be false with method = 'none'",
        ),
        (
            "method=fed3r-rf finetune=full",
            "finetune must be none or lp with method = 'fed3r-rf', got 'full': random "
            "features are those of a fixed backbone",
        ),
        ("method=fed3r-rf finetune=feat", "with method = 'fed3r-rf', got 'feat'"),
        ("probe=true", "probe must be false unless finetune = 'full' or"),
        ("refit=true finetune=lp", "got finetune = 'lp': the features stay the same"),
        (
            "backbone=resnet18+timm:resnet18 finetune=lp",
            r"finetune must be 'none' with backbone = 'resnet18\+timm:resnet18', got "
            "'lp': one network can be trained",
        ),
        (
            "backbone=pixels finetune=full",
            "finetune must be none or lp with backbone = 'pixels', got 'full': there",
        ),
        (
            "augment=true finetune=feat",
            "augment must be 'auto' or false .*mirrored, got dataset = 'digits'",
        ),
        (
            "augment=true finetune=lp dataset=grocery",
            "augment must be 'auto' or false unless finetune = 'full' or 'feat'",
        ),
        (
            "server-momentum=0.9",
            "server-momentum must be auto or 0 unless optimizer = 'fedavgm', got 0.9",
        ),
        (
            "server-momentum=0.9 optimizer=scaffold",
            "server-momentum must be auto or 0 unless .* with 'scaffold'",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(**given(changes))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        "method=none finetune=full",
        "method=none finetune=lp",
        "method=fed3r-rf finetune=lp",
        "method=fedncm finetune=feat refit=true",
        "method=lda finetune=full client-evaluation=true",
        "method=lda privacy=secagg",
        "finetune=full probe=true augment=true dataset=grocery",
        "finetune=feat optimizer=fedavgm server-momentum=0",
        "finetune=feat optimizer=fedavgm server-momentum=0.9",
        "finetune=feat optimizer=scaffold",
        "weight-decay=0",
    ],
)
def test_settings_that_go_together_are_accepted(changes: str) -> None:
    assert read(**given(changes)).finetune == given(changes).get("finetune", "none")


def test_another_method_has_the_same_statistics_and_obeys_the_rules() -> None:
    assert read(seed=3).with_method("lda") == read(seed=3, method="lda")
    assert read(method="lda").with_method("fed3r") == read()
    random_features = read(method="fed3r-rf")
    assert random_features.with_method("fed3r-rf") == random_features
    with pytest.raises(ValueError, match=r"method must be fed3r-rf for .*, got 'lda'"):
        random_features.with_method("lda")
    with pytest.raises(ValueError, match=r"fed3r or fedncm or lda .*, got 'fed3r-rf'"):
        read().with_method("fed3r-rf")
    with pytest.raises(ValueError, match="fit-intercept must be false with method ="):
        read(fit_intercept=True).with_method("lda")


def test_one_setting_can_be_checked_by_itself() -> None:
    check_setting("alpha", 1)
    with pytest.raises(ValueError, match="alpha must be a number >= 0, got 'big'"):
        check_setting("alpha", "big")
    with pytest.raises(ValueError, match=r"'alhpa' is not known.*'alpha'"):
        check_setting("alhpa", 1)


def test_a_value_of_another_type_is_refused_however_equal_it_is() -> None:
    # The same run config is read once; 1 equals true, and is not allowed here.
    assert read(resume=True, run_name="a").resume
    with pytest.raises(ValueError, match="resume must be true or false, got 1"):
        read(resume=1, run_name="a")
    assert read(seed=3) is read(seed=3)
    assert read(seed=3) is not read(seed=4)


@pytest.mark.parametrize(
    ("dim", "interval"),
    [(0, 50), (2000, 50), (5000, 125), (10_000, 250), (90_000, 250)],
)
def test_larger_systems_are_solved_less_often(dim: Any, interval: Any) -> None:
    assert read().evaluation_interval(1000, dim) == interval
    assert read(eval_every=7).evaluation_interval(1000, dim) == 7
    assert read().evaluation_interval(10, 1280) == 1  # all of few rounds


def test_a_retired_key_is_ignored_and_named_where_it_was_set() -> None:
    assert Config.from_run_config(DEFAULTS | {"early-stopping": 3}) == read()
    assert retired_keys(DEFAULTS | {"early-stopping": 0}) == {}
    assert retired_keys(DEFAULTS | {"early-stopping": 3}) == {
        "early-stopping": "a model must not be chosen on test images"
    }


@pytest.mark.parametrize(
    ("text", "augments"),
    [
        ("finetune=feat dataset=grocery", True),
        ("finetune=full dataset=cifar100 data-path=/x", True),
        ("finetune=lp dataset=grocery", False),
        ("finetune=feat dataset=digits", False),
        ("finetune=feat dataset=imagefolder data-path=/x", False),
        ("finetune=feat dataset=local", False),
        ("finetune=feat dataset=imagefolder data-path=/x augment=true", True),
        ("finetune=feat dataset=grocery augment=false", False),
    ],
)
def test_images_are_augmented_where_that_is_known_to_be_safe(
    text: str, augments: bool
) -> None:
    assert read(**given(text)).augments == augments


@pytest.mark.parametrize(
    ("text", "refits"),
    [
        ("finetune=feat", True),
        ("finetune=full", False),
        ("finetune=lp", False),
        ("finetune=full refit=true", True),
        ("finetune=feat refit=false", False),
        ("finetune=full method=none", False),
    ],
)
def test_the_backbone_alone_is_refitted_by_itself(text: str, refits: bool) -> None:
    assert read(**given(text)).refits == refits
