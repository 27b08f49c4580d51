"""Do all see the same? A node that computes other features is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from fed3r_app.data import reading
from fed3r_app.errors import RunError
from fed3r_app.features import extraction
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.inference_copy import fast_copy
from fed3r_app.features.parity import measure_parity
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.wire import Parity, ParityCheck, RecordError
from tests.harness.fixtures import app_runs
from tests.harness.pixels import assert_close
from tests.harness.runs import AppRuns

ODD = 0  # the first: whoever comes after it, the server too, is as ever
NETWORK: dict[str, Any] = {
    "backbone": "mobilenet_v2",
    "image-size": 32,
    "dataset": "digits-small",
    "partition": "iid",
    "ridge-lambda": 10.0,
    "round-timeout": 20.0,
    "max-retries": 2,
}
# The first request that needs the backbone, by what a run asks for.
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "statistics": ("train.statistics", {}),
    "moments": ("query.hello", {"method": "fed3r-rf", "rf_dim": 50}),
    "secagg": ("query.keys", {"privacy": "secagg", "clients_per_round": 0}),
    "dp": (
        "train.statistics",
        {"dp_epsilon": 8.0, "upload": "dense", "upload_dtype": "float64"},
    ),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, NETWORK)


def other_decoder(patch: pytest.MonkeyPatch) -> None:
    """Read as software does that does not know EXIF."""
    patch.setattr(
        reading.Reading,
        "read",
        lambda self, file, name: reading._read_as_v0_1(file, name),
    )


def other_weights(patch: pytest.MonkeyPatch) -> None:
    """Change one layer a little: other weights under the same name."""

    def changed(module: Any, *args: Any) -> Any:
        copy = fast_copy(module, *args)
        with torch.no_grad():
            next(copy.parameters()).mul_(1.05)
        return copy

    patch.setattr(extraction, "fast_copy", changed)


def other_dtype(patch: pytest.MonkeyPatch) -> None:
    """Compute with half of the bits."""
    patch.setattr(extraction, "_torch_dtype", lambda dtype: torch.bfloat16)


def at_odd_client(
    change: Callable[[pytest.MonkeyPatch], None], tmp_path: Path
) -> tuple[Callable[[Message, Context], None], pytest.MonkeyPatch]:
    """Return a hook that lets one client be different, and what undoes it."""
    patch = pytest.MonkeyPatch()

    def before(message: Message, context: Context) -> None:
        patch.undo()
        extraction._network.cache_clear()
        if int(context.node_config["partition-id"]) == ODD:
            patch.setenv("FED3R_CACHE_DIR", str(tmp_path / "odd"))
            change(patch)

    return before, patch


@pytest.mark.parametrize("change", [other_decoder, other_weights, other_dtype])
def test_whoever_sees_otherwise_is_refused_by_name(
    run: AppRuns, tmp_path: Path, change: Any
) -> None:
    before, patch = at_odd_client(change, tmp_path)
    try:
        with pytest.raises(RunError, match=r"(?s)0: its features of the built-in pict"):
            run(3, before=before)
    finally:
        patch.undo()
    (refused,) = (e for e in run.last.ledger if e.client == str(ODD))
    assert refused.outcome == "refused"
    assert "must be within 0.001 of the server's" in refused.reason
    assert "It runs Pillow" in refused.reason and "float32 on cpu" in refused.reason
    assert run.grid.asked["train.statistics"] == 3  # asked once: it would not heal


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_it_is_added_whatever_the_mode(
    run: AppRuns, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, settings = MODES[mode]
    before, patch = at_odd_client(other_decoder, tmp_path)
    num_clients = 4 if mode == "secagg" else 3
    settings = settings | {"min_clients": num_clients - 1}
    try:
        outcome = run(num_clients, before=before, run_name="odd", **settings)
    finally:
        patch.undo()
    said = outcome.summary
    assert said["clients_counted"] == num_clients - 1
    assert str(ODD) not in outcome.snapshot.contributions
    asked = [each.kind for each in outcome.exchanges if each.client == ODD]
    assert asked[-1] == kind
    assert f"lient {ODD}" in caplog.text
    assert "its features of the built-in picture must be within 0.001" in caplog.text


@pytest.mark.parametrize("finetune", ["full", "lp"])
def test_a_random_start_has_the_first_reply_of_its_training_tell(
    run: AppRuns, tmp_path: Path, finetune: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"method": "none", "finetune": finetune, "rounds": 2}
    settings |= {"lr": 1e-3, "clients_per_round": 0}
    before, patch = at_odd_client(other_decoder, tmp_path)
    try:
        outcome = run(3, before=before, **settings)
    finally:
        patch.undo()
    assert [line["clients_trained"] for line in outcome.tuning] == [2, 2]
    sentence = f"Client {ODD} failed: its features of the built-in picture must be"
    assert sentence in caplog.text
    trained = outcome.trained
    assert sorted((e.round, e.client) for e in trained) == [
        *((1, 0), (1, 1), (1, 2)),  # not asked again
        *((2, 1), (2, 2)),
    ]
    told = [each for each in trained if "parity" in each.reply.config_records]
    assert told == [each for each in trained if each.round == 1]


def test_after_a_closed_form_the_training_does_not_tell_again(run: AppRuns) -> None:
    outcome = run(2, finetune="lp", rounds=1)
    assert all("parity" not in each.reply.config_records for each in outcome.trained)


def test_who_sees_alike_is_not_refused(run: AppRuns, tmp_path: Path) -> None:
    before, patch = at_odd_client(lambda patch: None, tmp_path)
    try:
        outcome = run(3, before=before)
    finally:
        patch.undo()
    assert_close(outcome.weights, run(1, run_name="one").weights, 1e-5)


def test_pixels_and_given_features_have_no_handshake(run: AppRuns) -> None:
    outcome = run(4, backbone="pixels", image_size=8)
    for each in outcome.exchanges:
        assert all("parity" not in r for r in each.reply.config_records.values())
    synthetic = run(
        2, run_name="synthetic", dataset="synthetic", backbone="none", image_size=0
    )
    assert synthetic.summary["clients_counted"] == 2


def test_it_is_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(BackboneSpec("mobilenet_v2", "packaged", 32))
    cpu = torch.device("cpu")
    first = measure_parity(backbone, cpu, "float32", tmp_path)
    assert first is not None and len(first.values) == 64
    monkeypatch.setattr(extraction, "_network", lambda *args: pytest.fail())
    assert measure_parity(backbone, cpu, "float32", tmp_path) == first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_kernels_are_allowed_their_rounding_and_no_more(
    tmp_path: Path, dtype: str
) -> None:
    backbone = load_backbone(BackboneSpec("mobilenet_v2", "packaged", 64))

    def measure(dtype: str, folder: str) -> Parity:
        extraction._network.cache_clear()
        cpu = torch.device("cpu")
        measured = measure_parity(backbone, cpu, dtype, tmp_path / folder)
        assert measured is not None
        return measured

    check = ParityCheck(measure(dtype, "own"), dtype)
    with torch.backends.mkldnn.flags(enabled=False):
        check.check(measure(dtype, "plain kernels"))
    other = "bfloat16" if dtype == "float32" else "float32"
    with pytest.raises(RecordError, match="must be within"):
        check.check(measure(other, "other dtype"))


@pytest.mark.parametrize(
    "values", [(), (1.0,), (float("nan"), 2.0), (float("inf"), 2.0), (1.1, 2.0)]
)
def test_what_is_not_a_match_is_refused(values: Any) -> None:
    check = ParityCheck(Parity((1.0, 2.0), "mine"), "float32")
    check.check(Parity((1.0001, 2.0), "theirs"))
    with pytest.raises(RecordError, match=r"It runs theirs; the server runs mine"):
        check.check(Parity(values, "theirs"))
    with pytest.raises(RecordError, match="are not there"):
        check.check(None)
