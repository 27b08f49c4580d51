"""Snapshots, checkpoints and models come back bit for bit, or a sentence says why not.

What a snapshot and a model do besides stands below.
"""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fed3r_app.core import Classifier, FeatureMap, RidgeStatistics, predict
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.files.tensors import write_tensors
from fed3r_app.runs.model_file import SavedModel, load_model, save_model
from fed3r_app.runs.snapshots import (
    Checkpoint,
    Snapshot,
    check_settings,
    load_checkpoint,
    load_snapshot,
    save_checkpoint,
    save_snapshot,
)
from tests.harness.full_disk import KeepsOld

D, C = 6, 4
NAMES = ("cat", "dog", "ox", "ähre")
SETTINGS: dict[str, Any] = {
    **{"backbone": "pixels", "rf-sigma": 0.1 + 0.2, "rf-dim": 0, "ones": False}
}
PROGRESS = {"rounds": 3, "upload_bytes": 2**53 + 1, "seconds": 1e-17}
PRESENT = torch.tensor([True, False, True, True])
GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


Z = draw(10, D).float()


def make_statistics(d: int = D) -> RidgeStatistics:
    y = torch.randint(0, C - 1, (20,), generator=GENERATOR)
    return RidgeStatistics.of(draw(20, d), y, C)


def make_snapshot(statistics: RidgeStatistics | None = None) -> Snapshot:
    statistics = statistics or make_statistics()
    digests = {"a": "1" * 64, "b": "2" * 64, "ü": "1" * 64}
    return Snapshot(statistics, digests, SETTINGS, PROGRESS, NAMES, ("gone",))


def asymmetric() -> RidgeStatistics:
    """Return statistics whose A is not symmetric to the last bit."""
    stats = make_statistics()
    stats.A[0, 1] = torch.nextafter(stats.A[0, 1], torch.tensor(torch.inf).double())
    return stats


def make_checkpoint() -> Checkpoint:
    return Checkpoint(
        # The same names in all groups, as with Scaffold; strides as in channels_last.
        arrays={
            "backbone.0.weight": draw(2, 3, 4, 4).to(memory_format=torch.channels_last),
            "classifier.weight": draw(3, 5).float(),
        },
        running={"backbone.1.running_var": draw(4).abs()},
        optimizer={"backbone.0.weight": draw(2, 3, 4, 4), "0": draw(7)},
        settings={"lr": 0.1 + 0.2, "optimizer": "fedavgm", "augment": False},
        numbers={"trained": 3, "accuracy": None, "temperature": 0.1 + 0.2},
        progress=PROGRESS,
        clients=("2", "10", "clinic-a"),
    )


def make_model(
    W: Any = None, present: Any = PRESENT, bias: Any = None, **changes: Any
) -> SavedModel:
    W = draw(D, C) if W is None else W
    values = {
        "classifier": Classifier(W, present, bias),
        "class_names": NAMES,
        "method": "fed3r",
        "ridge_lambda": 0.1 + 0.2,
        "backbone": BackboneSpec("pixels", "none", 8, digest="none"),
        "feature_map": FeatureMap(D),
    }
    return SavedModel(**{**values, **changes})


MODELS = {
    "plain": make_model(),
    "bias": make_model(bias=torch.tensor([0.0, -1.0, 2.0, 0.5], dtype=torch.float64)),
    "float32": make_model(W=draw(D, C).float()),
    "class means": make_model(method="fedncm", ridge_lambda=None),
    "intercept": make_model(
        W=draw(D + 1, C), feature_map=FeatureMap(D, intercept=True)
    ),
    "random features": make_model(
        W=draw(20, C), feature_map=FeatureMap(D, 20, rf_sigma=3.5, rf_seed=7)
    ),
    "fine-tuned": make_model(backbone_arrays={"0.weight": draw(3, 2)}),
}
SNAPSHOTS = {
    **{f"d = {d}": make_snapshot(make_statistics(d)) for d in (1, 2, D, 130)},
    "not symmetric to the last bit": make_snapshot(asymmetric()),
    "of no clients": Snapshot(RidgeStatistics.zeros(D, C), {}, {}, {}, NAMES),
}
SAVE: dict[type, Any] = {
    Snapshot: (save_snapshot, load_snapshot),
    Checkpoint: (save_checkpoint, load_checkpoint),
    SavedModel: (save_model, load_model),
}
VALUES: dict[str, Any] = {
    **{f"snapshot, {name}": value for name, value in SNAPSHOTS.items()},
    "checkpoint": make_checkpoint(),
    **{f"model, {name}": value for name, value in MODELS.items()},
}
MAKERS = pytest.mark.parametrize("make", [make_snapshot, make_checkpoint, make_model])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "it.safetensors"


def save(path: Path, value: Any) -> None:
    SAVE[type(value)][0](path, value)


def load(path: Path, kind: type) -> Any:
    return SAVE[kind][1](path)


def assert_same(one: Any, other: Any) -> None:
    """Compare two values with their types, field by field, tensors bit for bit."""
    assert type(one) is type(other)
    if is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, torch.Tensor):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        bits = [tensor.contiguous().numpy().tobytes() for tensor in (one, other)]
        assert bits[0] == bits[1]
    else:
        assert one == other


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_save_then_load_is_the_identity(path: Path, value: Any) -> None:
    save(path, value)
    assert_same(load(path, type(value)), value)


@MAKERS
def test_a_file_replaces_the_one_before_and_what_was_loaded_outlives_it(
    path: Path, make: Any
) -> None:
    old, new = make(), make()
    save(path, old)
    loaded = load(path, type(old))
    save(path, new)
    assert_same(load(path, type(old)), new)
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    assert_same(loaded, old)


@MAKERS
def test_a_failed_save_leaves_the_file_before(
    path: Path, make: Any, keeps_old: KeepsOld
) -> None:
    save(path, make())
    keeps_old(path, lambda: save(path, make()))


@MAKERS
def test_no_cut_and_no_flipped_bit_is_taken_for_data(path: Path, make: Any) -> None:
    value = make()
    save(path, value)
    whole, refused = path.read_bytes(), 0
    for cut in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"it\.safetensors must hold the"):
            load(path, type(value))
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            loaded = load(path, type(value))
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:  # only in what carries no data
            assert_same(loaded, value)
    assert refused > 0.97 * len(whole) / 3


def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    path.write_bytes(safetensors.torch.save({"A": torch.zeros(2)}))
    with pytest.raises(ValueError, match="says None"):
        load_snapshot(path)
    write_tensors(path, "model of something", {"A": torch.zeros(2)}, {})
    with pytest.raises(ValueError, match="says 'model of something'"):
        load_snapshot(path)
    save(path, make_snapshot())
    with pytest.raises(ValueError, match=r"must hold the checkpoint .* says 'statis"):
        load_checkpoint(path)


def test_parameters_are_saved_as_they_are_at_that_moment(path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    save(path, replace(make_checkpoint(), arrays={"a": parameter}))
    parameter.data += 1
    assert torch.equal(load_checkpoint(path).arrays["a"], torch.ones(3))


def test_a_symmetric_matrix_takes_half_the_room(path: Path) -> None:
    stats = RidgeStatistics.zeros(300, C)
    save_snapshot(path, make_snapshot(stats))
    assert path.stat().st_size < 0.6 * stats.A.nbytes


def test_a_client_that_is_counted_and_forgotten_is_refused() -> None:
    with pytest.raises(ValueError, match="in the statistics or forgotten, got both"):
        Snapshot(make_statistics(), {"a": ""}, {}, {}, NAMES, ("a",))


def test_every_class_has_a_name() -> None:
    with pytest.raises(ValueError, match="class_names must name 4 classes, got 2"):
        Snapshot(make_statistics(), {}, {}, {}, ("cat", "dog"))


def test_the_classes_of_a_snapshot_may_be_numbered_anew() -> None:
    snapshot = make_snapshot()
    more = ("ant", "ox", "cat", "ähre", "dog")
    stats, then = snapshot.relabelled(more).statistics, snapshot.statistics
    for c, name in enumerate(NAMES):
        assert stats.counts[more.index(name)] == then.counts[c]
        assert torch.equal(stats.b[:, more.index(name)], then.b[:, c])
    assert torch.equal(stats.A, then.A)
    assert (stats.num_classes, stats.n) == (5, then.n)
    assert_same(snapshot.relabelled(more).relabelled(more), snapshot.relabelled(more))
    with pytest.raises(ValueError, match="must include 'cat'"):
        snapshot.relabelled(("ant", "dog", "ox", "ähre"))


def test_a_run_is_resumed_with_the_same_settings_only() -> None:
    check_settings(SETTINGS, dict(reversed(SETTINGS.items())))
    with pytest.raises(ValueError, match=r"rf-dim must be 0, as in .* got 5000"):
        check_settings(SETTINGS, {**SETTINGS, "rf-dim": 5000})
    with pytest.raises(ValueError, match=r"extra must be None, .* got 1"):
        check_settings(SETTINGS, {**SETTINGS, "extra": 1})
    earlier = {**SETTINGS, "data-identity": "0a", "dataset": "digits"}
    with pytest.raises(ValueError, match="dataset must be 'digits'"):
        check_settings(
            earlier, {**earlier, "data-identity": "1b", "dataset": "grocery"}
        )
    with pytest.raises(ValueError, match="got others: some were added, removed or"):
        check_settings(earlier, {**earlier, "data-identity": "1b"})


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_scores_are_those_of_the_mapped_features(model: SavedModel) -> None:
    scores, bias = model.scores(Z), model.classifier.bias
    assert torch.equal(scores[:, 1], torch.full((10,), -torch.inf))  # no samples
    if bias is not None:
        plain = replace(model, classifier=Classifier(model.W, model.present))
        assert torch.allclose((scores - plain.scores(Z))[:, 2], bias[2])
        return
    mapped = model.feature_map(Z).to(model.W.dtype)
    assert torch.equal(scores.argmax(dim=1), predict(mapped, model.W, model.present))
    assert torch.allclose(scores[:, 0], mapped @ model.W[:, 0])


def test_features_of_another_backbone_are_refused() -> None:
    with pytest.raises(ValueError, match="must have d = 6 columns, got 5"):
        make_model().scores(Z[:, :5])


@pytest.mark.parametrize(
    "changes",
    [
        {"W": torch.zeros(D, C + 1)},
        {"W": torch.zeros(C)},
        {"present": torch.ones(C)},
        {"present": torch.ones(C + 1, dtype=torch.bool)},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes: Any) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must"):
        make_model(**changes)
