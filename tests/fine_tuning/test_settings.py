"""Settings of the fine-tuning that contradict each other, and their sentences."""

from typing import Any

import pytest

from fed3r_app.config import DEFAULTS, Config


def read(**changes: Any) -> Any:
    return Config.from_run_config(
        DEFAULTS | {key.replace("_", "-"): value for key, value in changes.items()}
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method": "none"},
            "finetune must be full or lp with method = 'none', got 'no",
        ),
        (
            {"method": "none", "finetune": "feat"},
            "finetune must be full or lp with method = 'none', got 'feat': a random",
        ),
        (
            {"method": "none", "finetune": "lp", "client_evaluation": True},
            "client-evaluation must be false with method = 'none'",
        ),
        (
            {"method": "fed3r-rf", "finetune": "full"},
            "finetune must be none or lp with method = 'fed3r-rf', got 'full': random "
            "features are those of a fixed backbone",
        ),
        (
            {"method": "fed3r-rf", "finetune": "feat"},
            "finetune must be none or lp with method = 'fed3r-rf', got 'feat'",
        ),
        ({"probe": True}, "probe must be false unless finetune = 'full' or"),
        (
            {"refit": True, "finetune": "lp"},
            "got finetune = 'lp': the features stay the same",
        ),
        (
            {"backbone": "pixels", "finetune": "full"},
            "finetune must be none or lp with backbone = 'pixels', got 'full': there",
        ),
        (
            {"augment": True, "finetune": "feat"},
            "augment must be false .*mirrored, got dataset = 'digits'",
        ),
        (
            {"augment": True, "finetune": "lp", "dataset": "grocery"},
            "augment must be false unless finetune = 'full' or 'feat'",
        ),
        (
            {"server_momentum": 0.9},
            "server-momentum must be auto or 0 unless optimizer = 'fedavgm', got 0.9",
        ),
        (
            {"server_momentum": 0.9, "optimizer": "scaffold"},
            "server-momentum must be auto or 0 unless .* with 'scaffold'",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(**changes)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
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
    key: Any, value: Any, rule: Any
) -> None:
    with pytest.raises(ValueError) as caught:
        read(**{key: value})
    assert str(caught.value) == f"{key} must be {rule}."


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "none", "finetune": "full"},
        {"method": "none", "finetune": "lp"},
        {"method": "fed3r-rf", "finetune": "lp"},
        {"method": "fedncm", "finetune": "feat", "refit": True},
        {"finetune": "full", "probe": True, "augment": True, "dataset": "grocery"},
        {"finetune": "feat", "optimizer": "fedavgm", "server_momentum": 0},
        {"finetune": "feat", "optimizer": "fedavgm", "server_momentum": 0.9},
        {"finetune": "feat", "optimizer": "scaffold"},
        {"weight_decay": 0},
    ],
)
def test_settings_that_go_together_are_accepted(changes: Any) -> None:
    assert read(**changes).finetune == changes.get("finetune", "none")
