"""SGD at a client, against steps taken by hand."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fed3r_app.features.weights import digest_arrays
from fed3r_app.training.model import (
    SoftmaxModel,
    load_arrays,
    random_classifier,
)
from fed3r_app.training.sgd import TrainingSettings, measure, train

N, D, C = 23, 5, 3


def settings(**changes: Any) -> Any:
    given = {"epochs": 1, "batch_size": 8, "lr": 0.1, "weight_decay": 0.01}
    return TrainingSettings(**{"temperature": 0.5, **given, **changes})


def generator(seed: int = 0) -> Any:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def samples() -> Any:
    Z = torch.randn(N, D, generator=generator())
    return Z, torch.randint(0, C, (N,), generator=generator(1))


@pytest.fixture
def linear() -> Any:
    arrays = random_classifier(D, C, intercept=True, seed=0)
    return SoftmaxModel(None, arrays["classifier.weight"], arrays["classifier.bias"])


def network() -> Any:
    """Return a small network with batch norm and dropout, on images of 4 x 4."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=4), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout()
        )
        return SoftmaxModel(body, torch.randn(C, 4), None)


def run(
    model: Any, samples: Any, how: Any, names: Any = None, correction: Any = None
) -> Any:
    Z, y = samples
    places = dict(model.named_parameters())
    trained = {name: places[name] for name in names or places}
    return train(model, trained, Z.__getitem__, y, how, generator(), correction)


def images(n: int = 6) -> tuple[Tensor, Tensor]:
    """Return images of 4 x 4 and their labels."""
    return torch.randn(n, 1, 4, 4, generator=generator()), torch.arange(n) % C


def test_a_step_is_sgd_with_weight_decay_on_the_scaled_logits(
    linear: Any, samples: Any
) -> None:
    Z, y = samples
    expected = copy.deepcopy(linear)
    loss = cross_entropy(expected(Z) / 0.5, y)
    loss.backward()
    outcome = run(linear, samples, settings(batch_size=N))
    assert outcome.steps == 1
    assert outcome.loss == pytest.approx(float(loss), rel=1e-6)
    for before, after in zip(expected.parameters(), linear.parameters(), strict=True):
        step = before.grad + 0.01 * before
        torch.testing.assert_close(after, before - 0.1 * step)


def test_the_correction_is_added_to_every_gradient(linear: Any, samples: Any) -> None:
    plain = copy.deepcopy(linear)
    correction = {k: torch.ones_like(v) for k, v in linear.named_parameters()}
    run(plain, samples, settings(batch_size=N))
    run(linear, samples, settings(batch_size=N), correction=correction)
    for one, other in zip(plain.parameters(), linear.parameters(), strict=True):
        torch.testing.assert_close(other, one - 0.1)


# 23 = 8 + 8 + 7; 17 = 8 + 9, the last one not left alone; 1 is alone anyway.
@pytest.mark.parametrize(
    ("n", "batch_size", "steps"),
    [(23, 8, 3), (17, 8, 2), (16, 8, 2), (9, 8, 1), (1, 8, 1), (3, 1, 2), (0, 8, 0)],
)
def test_every_sample_is_seen_once_an_epoch(
    linear: Any, samples: Any, n: int, batch_size: Any, steps: Any
) -> None:
    Z, y = samples[0][:n], samples[1][:n]
    seen = []

    def read(batch: Any) -> Any:
        seen.extend(batch.tolist())
        return Z[batch]

    how = settings(epochs=2, batch_size=batch_size)
    outcome = train(linear, dict(linear.named_parameters()), read, y, how, generator())
    assert outcome.steps == 2 * steps
    assert sorted(seen[:n]) == sorted(seen[n:]) == list(range(n))


def test_only_the_named_parameters_move() -> None:
    model = network()
    for names in (["classifier.weight"], ["backbone.0.weight", "backbone.1.bias"]):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        run(model, images(), settings(), names)
        after = model.state_dict()
        assert [k for k in after if not torch.equal(after[k], before[k])] == names


def test_frozen_batch_norm_does_not_look_at_the_batch() -> None:
    model = network()
    before = {k: v.clone() for k, v in model.running_statistics().items()}
    run(model, images(), settings())
    for name, value in model.running_statistics().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(("n", "batch_size"), [(1, 8), (2, 1), (9, 8), (3, 2)])
def test_batches_of_one_small_image_train_with_batch_norm(
    n: int, batch_size: Any
) -> None:
    model = network()
    run(model, images(n), settings(batch_size=batch_size, train_batch_norm=True))
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    follows = not torch.equal(model.backbone[1].running_mean, torch.zeros(4))
    assert follows == (n > 1)  # two in batches of one are one batch of two


def test_training_draws_nothing_but_from_its_generator() -> None:
    how, states = settings(train_batch_norm=True, epochs=3), []
    for seed in (1, 2):
        model = network()
        torch.manual_seed(seed)
        run(model, images(), how)
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_a_loss_that_is_not_finite_stops_at_once(linear: Any, samples: Any) -> None:
    Z, y = samples
    with pytest.raises(ValueError, match=r"became nan after 0 steps with lr = 0\.1"):
        run(linear, (Z * torch.nan, y), settings())
    with pytest.raises(ValueError, match=r"loss became .* after 1 steps .* Lower lr"):
        run(linear, samples, settings(lr=3e38, epochs=2, batch_size=N))


def test_arrays_of_another_model_are_refused(linear: Any) -> None:
    with pytest.raises(ValueError, match=r"'classifier.weight' must fit .*\(2, 2\)"):
        load_arrays(linear, {"classifier.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match=r"'other' must fit .* no such array"):
        load_arrays(linear, {"other": torch.zeros(2)})


def test_a_digest_names_values_names_and_shapes() -> None:
    arrays = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    digest = digest_arrays(arrays)
    assert digest_arrays(dict(reversed(arrays.items()))) == digest
    changed = arrays["a"].clone()
    changed[0] = torch.nextafter(changed[0], torch.tensor(1.0))
    for other in (
        {"a": changed, "b": arrays["b"]},
        {"a": arrays["a"].reshape(2, 3), "b": arrays["b"]},
        {"c": arrays["a"], "b": arrays["b"]},
        {"a": arrays["a"].double(), "b": arrays["b"]},
    ):
        assert digest_arrays(other) != digest


@pytest.mark.parametrize("clip_norm", [0.01, 1e6, 0.0])
def test_gradients_are_clipped_to_a_norm(
    linear: Any, samples: Any, clip_norm: float
) -> None:
    Z, y = samples
    expected = copy.deepcopy(linear)
    cross_entropy(expected(Z) / 0.5, y).backward()
    gradients = [p.grad for p in expected.parameters() if p.grad is not None]
    norm = float(torch.cat([g.flatten() for g in gradients]).norm())
    assert norm > 0.02
    how = settings(batch_size=N, weight_decay=0.0, clip_norm=clip_norm)
    run(linear, samples, how)
    share = min(clip_norm / norm, 1.0) if clip_norm else 1.0
    for before, after in zip(expected.parameters(), linear.parameters(), strict=True):
        torch.testing.assert_close(after, before - 0.1 * share * before.grad)


def test_scaffolds_correction_is_added_to_the_clipped_gradient(
    linear: Any, samples: Any
) -> None:
    still = copy.deepcopy(linear)
    correction = {k: torch.ones_like(v) for k, v in linear.named_parameters()}
    how = settings(batch_size=N, weight_decay=0.0, clip_norm=1e-9)
    run(linear, samples, how, correction=correction)
    for before, after in zip(still.parameters(), linear.parameters(), strict=True):
        torch.testing.assert_close(after, before - 0.1)


def test_the_prior_of_the_client_is_added_to_the_scaled_logits(
    linear: Any, samples: Any
) -> None:
    Z, y = samples
    counts = torch.bincount(y, minlength=C) + 10.0
    expected = copy.deepcopy(linear)
    loss = cross_entropy(expected(Z) / 0.5 + (counts / counts.sum()).log(), y)
    loss.backward()
    how = settings(batch_size=N, weight_decay=0.0, local_prior=True)
    outcome = run(linear, samples, how)
    assert outcome.loss == pytest.approx(float(loss), rel=1e-6)
    for before, after in zip(expected.parameters(), linear.parameters(), strict=True):
        torch.testing.assert_close(after, before - 0.1 * before.grad)


def test_a_client_of_one_class_still_learns_with_its_prior(samples: Any) -> None:
    Z, _ = samples
    model, y = SoftmaxModel(None, torch.zeros(C, D), None), torch.ones(N).long()
    run(model, (Z, y), settings(local_prior=True))
    assert float(model.classifier.weight.norm()) > 0.01


def test_what_is_measured_has_no_prior_and_no_dropout(samples: Any) -> None:
    (Z, y), model = images(), network()
    model.eval()
    how = settings(batch_size=4, local_prior=True)
    loss, correct = measure(model, Z.__getitem__, y, how)
    logits = model(Z).detach()
    assert loss == pytest.approx(float(cross_entropy(logits / 0.5, y)), rel=1e-6)
    assert correct == int((logits.argmax(dim=1) == y).sum())
