"""Forgetting can't be cheated, and takes everything along."""

import json
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.errors import RunError
from fed3r_app.runs.contributions import save_contribution
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import ACCEPTED, LedgerEntry
from fed3r_app.runs.saved_run import SavedRun
from fed3r_app.runs.snapshots import Snapshot, save_snapshot
from fed3r_app.wire import pack_statistics, unpack_contribution
from tests.harness.nodes import ALL, Federation
from tests.harness.runs import Outcome

VICTIM = "clinic-b"  # of three classes and four images


def forget(federation: Federation, **tampered: Any) -> Outcome:
    """Let clinic-b be asked once more; arrays of its reply may be others."""
    grid = federation.make_grid(ALL, resume=True, forget=VICTIM)

    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        for name, change in tampered.items():
            arrays = reply.array_records.get("arrays", ArrayRecord())
            if name in arrays:
                arrays[name] = Array(change(arrays[name].numpy().copy()))

    grid.tamper = tamper
    return federation.run(grid=grid)


def scaled(values: Any) -> Any:
    return values * 0.9


def turned(values: Any) -> Any:
    """Return a feature less by a thousandth: features stay in their range."""
    values[0] *= 0.999
    return values


@pytest.mark.parametrize(
    "tampered", [{"R": scaled, "S": scaled}, {"R": turned}], ids=["all", "one row"]
)
def test_who_sends_other_statistics_under_the_old_digest_is_refused(
    federation: Federation, tampered: Any
) -> None:
    directory = federation.run(ALL).directory
    before = {p.name: p.read_bytes() for p in directory.glob("*.safetensors")}
    with pytest.raises(RunError, match="clinic-b must send the statistics it sent"):
        forget(federation, **tampered)
    last = Outcome(directory).ledger[-1]
    assert (last.client, last.outcome) == (VICTIM, "refused")
    after = {p.name: p.read_bytes() for p in directory.glob("*.safetensors")}
    assert after == before
    assert forget(federation).snapshot.contributions.keys() == {*ALL} - {VICTIM}


def test_a_run_without_sketches_forgets_and_says_what_it_did_not_check(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    directory = federation.run(ALL).directory
    (directory / "sketches.jsonl").unlink()
    with caplog.at_level("WARNING", logger="flwr"):
        outcome = forget(federation)
    federation.assert_pooled(outcome, [c for c in ALL if c != VICTIM])
    assert "by its own digest alone" in caplog.text


def test_a_sketch_goes_with_its_client_and_is_for_the_owner_alone(
    federation: Federation,
) -> None:
    path = federation.run(ALL).directory / "sketches.jsonl"
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert sorted(line["client"] for line in lines) == sorted(ALL)
    assert len(bytes.fromhex(first["secret"])) == 32
    forget(federation)
    assert VICTIM not in path.read_text()
    assert json.loads(path.read_text().splitlines()[0]) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("line", ['{"client": "x"}', "[]", '{"of_A": {}} {'])
def test_damaged_sketches_are_said(federation: Federation, line: str) -> None:
    path = federation.run(ALL).directory / "sketches.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([first, line, *others]) + "\n")
    with pytest.raises(RunError, match=r"sketches\.jsonl.*damaged"):
        forget(federation)


@pytest.mark.parametrize(
    "settings",
    [
        {"dp_epsilon": 5.0, "upload": "dense", "labels": "cat,dog,elk,owl,yak"},
        {"privacy": "secagg", "secagg_group": 4, "labels": "cat,dog,elk,owl,yak"},
    ],
)
def test_where_only_protected_sums_may_be_kept_there_is_no_sketch(
    federation: Federation, settings: Any
) -> None:
    outcome = federation.run(ALL, **settings)
    assert outcome.snapshot.statistics.n
    assert not (outcome.directory / "sketches.jsonl").exists()


class TestHugeFeatures:
    """One client has features that leave nothing of the others but rounding errors."""

    NAMES = ("cat", "dog")

    def run_of(self, folder: Path, size: float, keep: bool) -> SavedRun:
        """Return a run of clients 0, 1 and 2 with images of normal features."""
        directory = RunDirectory(folder)
        config = {"dataset": "digits", "keep-contributions": keep, "ridge-lambda": 1.0}
        directory.write_config(config)
        total, self.parts = RidgeStatistics.zeros(4, 2), {}
        settings = asdict(FeatureMap(4))
        for client in range(3):
            Z = torch.randn(
                6, 4, generator=torch.manual_seed(client), dtype=total.A.dtype
            )
            Z *= size if client == 1 else 1.0
            y = torch.arange(6) % 2
            record = pack_statistics(Z, y, 2, "dense", "float64")
            self.parts[str(client)] = unpack_contribution(record).statistics()
            if keep:
                kept = directory.contributions_path
                save_contribution(kept, str(client), "a", record, self.NAMES)
            total += self.parts[str(client)]
        contributions: dict[str, str] = dict.fromkeys(self.parts, "a")
        snapshot = Snapshot(total, contributions, settings, {}, self.NAMES)
        save_snapshot(directory.statistics_path, snapshot)
        run = SavedRun(directory)
        for name in contributions:
            run.state.ledger.append(LedgerEntry(name, ACCEPTED, "a", 6))
        return run

    def test_what_was_kept_of_the_others_is_added_up_anew(self, tmp_path: Path) -> None:
        run = self.run_of(tmp_path, 1e12, keep=True)
        assert run.forget("1")
        rest = self.parts["0"] + self.parts["2"]
        torch.testing.assert_close(
            run.snapshot.statistics.A, rest.A, rtol=1e-13, atol=0
        )

    def test_nothing_is_saved_where_it_had_to_be_subtracted(
        self, tmp_path: Path
    ) -> None:
        run = self.run_of(tmp_path, 1e12, keep=False)
        before = run.directory.statistics_path.read_bytes()
        with pytest.raises(ValueError, match="must be small enough to be subtracted"):
            run.forget("1", self.parts["1"])
        assert run.directory.statistics_path.read_bytes() == before

    def test_a_rest_that_is_of_no_images_is_not_saved(self, tmp_path: Path) -> None:
        run = self.run_of(tmp_path, 1.0, keep=False)
        other = self.parts["1"]
        other.A.mul_(1.5)
        with pytest.raises(ValueError, match="What is left without client 1 must be"):
            run.forget("1", other)
        assert run.snapshot.contributions.keys() == {"0", "1", "2"}
