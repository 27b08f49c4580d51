"""Saved models: what comes back classifies as what was saved."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.core import Classifier, FeatureMap, predict
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.runs.model_file import SavedModel, load_model, save_model
from tests.harness.full_disk import KeepsOld

D, C = 6, 3
GENERATOR = torch.Generator().manual_seed(0)
Z = torch.randn(10, D, generator=GENERATOR)


def make_model(
    W: Any = None, present: Any = None, bias: Any = None, **changes: Any
) -> Any:
    if W is None:
        W = torch.randn(D, C, generator=GENERATOR, dtype=torch.float64)
    if present is None:
        present = torch.tensor([True, False, True])
    values = {
        "classifier": Classifier(W, present, bias),
        "class_names": ("cat", "dog", "Ölkanne"),
        "method": "fed3r",
        "ridge_lambda": 0.1 + 0.2,
        "backbone": BackboneSpec("pixels", "none", 8, digest="none"),
        "feature_map": FeatureMap(D),
    }
    return SavedModel(**{**values, **changes})


def rows(number: Any) -> Any:
    return torch.randn(number, C, generator=GENERATOR, dtype=torch.float64)


MODELS = {
    "plain": make_model(),
    "bias": make_model(bias=torch.tensor([0.0, -1.0, 2.0], dtype=torch.float64)),
    "float32": make_model(W=rows(D).float()),
    "class means": make_model(method="fedncm", ridge_lambda=None),
    "intercept": make_model(W=rows(D + 1), feature_map=FeatureMap(D, intercept=True)),
    "random features": make_model(
        W=rows(20), feature_map=FeatureMap(D, 20, rf_sigma=3.5, rf_seed=7)
    ),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]


@pytest.fixture
def path(tmp_path: Path) -> Any:
    return tmp_path / "model.safetensors"


def assert_same(one: Any, other: Any) -> None:
    for field in fields(SavedModel):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert field.name == "classifier" or mine == theirs
        assert type(mine) is type(theirs)
    for field in fields(Classifier):
        mine = getattr(one.classifier, field.name)
        theirs = getattr(other.classifier, field.name)
        if mine is None:
            assert theirs is None
        else:
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


def test_save_then_load_is_the_identity(path: Path, model: Any) -> None:
    save_model(path, model)
    loaded = load_model(path)
    assert_same(loaded, model)
    assert torch.equal(loaded.scores(Z), model.scores(Z))


def test_scores_are_those_of_the_mapped_features(model: Any) -> None:
    if model.classifier.bias is not None:
        plain = replace(model, classifier=Classifier(model.W, model.present))
        added = model.scores(Z) - plain.scores(Z)
        assert torch.allclose(added[:, 2], model.classifier.bias[2])
        return
    mapped = model.feature_map(Z).to(model.W.dtype)
    assert torch.equal(
        model.scores(Z).argmax(dim=1), predict(mapped, model.W, model.present)
    )
    assert torch.allclose(model.scores(Z)[:, 0], mapped @ model.W[:, 0])


def test_a_class_without_samples_is_never_the_best(model: Any) -> None:
    assert torch.equal(model.scores(Z)[:, 1], torch.full((10,), -torch.inf))


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


def test_damage_is_never_taken_for_a_model(path: Path) -> None:
    model = MODELS["plain"]
    save_model(path, model)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match=r"model\.safetensors must hold"):
            load_model(path)
        flipped = bytes([whole[place] ^ 4])
        path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        try:
            assert_same(load_model(path), model)
        except ValueError as error:
            assert str(path) in str(error)


def test_a_failed_save_leaves_the_model_before(path: Path, keeps_old: KeepsOld) -> None:
    save_model(path, MODELS["plain"])
    keeps_old(path, lambda: save_model(path, MODELS["float32"]))
