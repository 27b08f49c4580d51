"""What a round sends: the paper's values, the classifier of feat once, no more."""

from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message

from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.spec import BackboneSpec
from tests.harness.runs import AppRuns

B, D, C = 341_792, 1024, 4  # backbone parameters, features, classes
FIXED = "classifier"


def payload(content: Any) -> Any:
    """Return the bytes of all arrays, without what frames them."""
    return sum(
        array.numpy().nbytes
        for record in content.array_records.values()
        for array in record.values()
    )


@pytest.mark.parametrize(
    ("finetune", "optimizer", "values"),
    [
        pytest.param("full", "fedavg", B + D * C, marks=pytest.mark.slow),
        ("full", "scaffold", 2 * (B + D * C)),
        ("feat", "fedavgm", B),
        pytest.param("feat", "scaffold", 2 * B, marks=pytest.mark.slow),
        ("lp", "fedavg", D * C),
        ("lp", "scaffold", 2 * D * C),
    ],
)
def test_a_round_sends_what_the_formulas_say(
    run: AppRuns, few_images: Any, finetune: Any, optimizer: Any, values: Any
) -> None:
    outcome = run(2, finetune=finetune, optimizer=optimizer, **few_images)
    assert len(outcome.trained) == 4
    for each in outcome.trained:
        first = finetune == "feat" and each.round == 1
        # The paper's formula leaves out the classifier that is sent once.
        extra = 4 * D * C if first else 0
        assert payload(each.request) == 4 * values + extra
        assert payload(each.reply) == 4 * values
    # Both phases by the formulas: A and b of each client, then two rounds.
    statistics = 4 * 2 * (D * D + D * C)
    assert outcome.summary["paper_upload_bytes"] == statistics + 4 * 2 * 2 * values
    assert outcome.summary["paper_download_bytes"] == 4 * 2 * 2 * values
    # What is reported is that and its framing: a header and a name for each array.
    arrays = sum(len(record) for record in outcome.trained[0].reply.values())
    uploaded = outcome.summary["upload_bytes"] - outcome.metrics[0]["upload_bytes"]
    assert 0 < uploaded - 4 * 4 * values <= 4 * 300 * arrays


def test_running_statistics_are_an_extra_term(run: AppRuns, few_images: Any) -> None:
    settings = few_images | {"rounds": 1, "finetune": "full", "method": "none"}
    outcome = run(2, batch_norm="train", **settings)
    spec = BackboneSpec("shufflenet_v2_x0_5", "random", 32)
    buffers = load_backbone(spec).module.buffers()
    extra = sum(value.numel() for value in buffers if value.ndim == 1)
    for each in outcome.trained:
        assert payload(each.request) == 4 * (B + D * C + extra)
        assert payload(each.reply) == 4 * (B + D * C + extra)


def test_lp_leaves_the_backbone_and_feat_the_classifier_to_the_bit(
    run: AppRuns, few_photos: Any
) -> None:
    start = run(2, run_name="start", **few_photos).model
    lp = run(2, run_name="lp", finetune="lp", **few_photos).model
    assert lp.backbone_arrays == {}
    assert lp.backbone == start.backbone
    assert not torch.equal(lp.W, start.W.float().double())
    feat = run(2, run_name="feat", finetune="feat", **few_photos).model
    assert torch.equal(feat.W, start.W.float().double())
    module = load_backbone(BackboneSpec("mobilenet_v2", "packaged", 32)).module
    pretrained = dict(module.named_parameters())
    moved = [
        name
        for name, value in feat.backbone_arrays.items()
        if not torch.equal(value, pretrained[name.removeprefix("backbone.")])
    ]
    assert len(feat.backbone_arrays) == len(pretrained)
    assert len(moved) > len(pretrained) / 2


FEAT = {"finetune": "feat", "rounds": 3}


def classifiers_sent(outcome: Any) -> Any:
    """Return (round, client) of each request that held the fixed classifier."""
    return sorted(
        (each.round, each.client) for each in outcome.trained if FIXED in each.request
    )


def test_the_fixed_classifier_travels_once_and_never_back(
    run: AppRuns, few_images: Any
) -> None:
    outcome = run(2, **few_images | FEAT)
    assert classifiers_sent(outcome) == [(1, 0), (1, 1)]
    for each in outcome.trained:
        assert FIXED not in each.reply
        assert not any("classifier" in name for name in each.received())
        assert not any("classifier" in name for name in each.sent())


def forget(state: Any) -> None:
    state.clear()


def spoil(state: Any) -> None:
    record = state.array_records[FIXED]
    state[FIXED] = ArrayRecord(
        {name: Array(array.numpy() + 1) for name, array in record.items()}
    )


@pytest.mark.parametrize("damage", [forget, spoil])
def test_the_fixed_classifier_is_sent_again_to_who_has_lost_it(
    run: AppRuns, few_images: Any, damage: Any
) -> None:
    def disturb(message: Message, context: Context) -> None:
        number = message.content.config_records["config"].get("server-round")
        if number == 2 and context.node_config["partition-id"] == 1:
            damage(context.state)

    outcome = run(2, before=disturb, **few_images | FEAT)
    assert classifiers_sent(outcome) == [(1, 0), (1, 1), (3, 1)]
    assert [line["clients_trained"] for line in outcome.tuning] == [2, 1, 2]
