"""A saved run worked on later: add, forget, replace, solve, and the audit of it all."""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.cli import main as fed3r
from fed3r_app.core import solve_lda
from fed3r_app.errors import RunError
from fed3r_app.runs.contributions import contribution_path, save_contribution
from fed3r_app.runs.model_file import load_model, save_model
from fed3r_app.runs.snapshots import save_snapshot
from fed3r_app.wire import pack_statistics
from tests.harness.nodes import ALL, LABELS, Federation, at_first
from tests.harness.pixels import LAM, assert_close
from tests.harness.runs import Outcome


def without(*clients: Any) -> Any:
    return [client for client in ALL if client not in clients]


def assert_model_of(federation: Federation, directory: Path, clients: Any) -> None:
    """Check that the model is that of a run that only ever had these clients."""
    model = Outcome(directory).model
    assert model.class_names == LABELS
    federation.assert_pooled(Outcome(directory), clients)
    assert not model.W[:, ~model.present].any()


def last_entry(directory: Path) -> Any:
    entry = Outcome(directory).ledger[-1]
    return entry.client, entry.outcome


def audit(directory: Path) -> int:
    return fed3r(["audit", str(directory)])


def resume(federation: Federation, clients: Any, **settings: Any) -> Any:
    return federation.run(clients, resume=True, **settings).directory


@pytest.mark.parametrize("client", ALL)
def test_forgetting_a_kept_contribution_is_never_having_had_it(
    federation: Federation, client: Any
) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    shutil.rmtree(federation.folder(client))  # it need not be there
    assert fed3r(["forget", str(directory), client]) == 0
    assert_model_of(federation, directory, without(client))
    assert last_entry(directory) == (client, "forgotten")
    assert client not in Outcome(directory).snapshot.contributions
    assert len(list((directory / "contributions").iterdir())) == 3
    assert audit(directory) == 0


def test_a_client_whose_contribution_was_not_kept_is_asked_once_more(
    federation: Federation,
) -> None:
    directory = federation.run(ALL).directory
    assert not (directory / "contributions").exists()
    assert fed3r(["forget", str(directory), "clinic-b"]) == 1  # it must be asked
    resume(federation, ALL, forget="clinic-b")
    assert federation.grid.asked["train.statistics"] == 1
    assert_model_of(federation, directory, without("clinic-b"))
    assert audit(directory) == 0


def test_a_client_that_has_other_data_by_now_is_not_forgotten(
    federation: Federation,
) -> None:
    directory = federation.run(ALL).directory
    federation.add_images(federation.folder("clinic-b"), ["owl"], seed=1)
    with pytest.raises(RunError, match=r"Client clinic-b must have the data .*digest"):
        resume(federation, ALL, forget="clinic-b")
    assert last_entry(directory) == ("clinic-b", "refused")
    assert "clinic-b" in Outcome(directory).snapshot.contributions
    assert Outcome(directory).summary["clients_counted"] == 4
    assert audit(directory) == 0


def test_who_is_forgotten_is_not_asked_again_unless_admitted(
    federation: Federation,
) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    fed3r(["forget", str(directory), "clinic-a"])
    resume(federation, ALL, keep_contributions=True)
    assert "train.statistics" not in federation.grid.asked
    assert_model_of(federation, directory, without("clinic-a"))
    assert Outcome(directory).summary["clients"] == 3
    # The command, up to where it would start the run.
    assert fed3r(["add", str(directory), "127.0.0.1:1", "--readmit", "clinic-a"]) == 1
    resume(federation, ALL, keep_contributions=True)
    assert_model_of(federation, directory, ALL)
    assert audit(directory) == 0


def test_adding_a_client_is_having_had_it_from_the_start(
    federation: Federation,
) -> None:
    first = without("clinic-10", "clinic-c")
    directory = federation.run(first).directory
    assert Outcome(directory).model.class_names == ("cat", "dog", "owl")
    resume(federation, ["clinic-10", "clinic-c"])  # the others have gone home
    assert federation.grid.asked["train.statistics"] == 2
    assert_model_of(federation, directory, ALL)
    assert Outcome(directory).summary["clients_counted"] == 4
    assert audit(directory) == 0


def test_those_counted_before_are_among_the_least_number_of_clients(
    federation: Federation,
) -> None:
    directory = federation.run(without("clinic-c"), min_clients=3).directory
    resume(federation, ["clinic-c"], min_clients=3)  # the others have gone home
    assert_model_of(federation, directory, ALL)
    with pytest.raises(RunError, match="min-clients must be <= 4"):
        resume(federation, ["clinic-c"], min_clients=5)


def test_classes_that_came_later_do_not_confuse_what_was_kept(
    federation: Federation,
) -> None:
    federation.run(without("clinic-10"), keep_contributions=True)
    directory = resume(federation, ALL, keep_contributions=True)
    assert audit(directory) == 0
    assert fed3r(["forget", str(directory), "clinic-b"]) == 0
    assert_model_of(federation, directory, without("clinic-b"))
    assert audit(directory) == 0


def test_replacing_is_forgetting_and_adding_in_one(federation: Federation) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    federation.add_images(federation.folder("clinic-c"), ["owl", "cat"], seed=1)
    resume(federation, ALL, keep_contributions=True)
    assert "train.statistics" not in federation.grid.asked  # it is counted, as it was
    resume(federation, ALL, replace="clinic-c")
    assert_model_of(federation, directory, ALL)
    assert last_entry(directory) == ("clinic-c", "replaced")
    assert audit(directory) == 0
    assert fed3r(["forget", str(directory), "clinic-c"]) == 0
    assert_model_of(federation, directory, without("clinic-c"))


def test_the_method_that_a_run_was_solved_with_later_stays(
    federation: Federation,
) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    assert fed3r(["solve", str(directory), "--method", "lda"]) == 0
    federation.add_images(federation.folder("clinic-c"), ["owl", "cat"], seed=1)
    resume(federation, ALL, replace="clinic-c")
    assert fed3r(["forget", str(directory), "clinic-b"]) == 0
    model = Outcome(directory).model
    assert model.method == Outcome(directory).summary["method"] == "lda"
    folders = [federation.folder(client) for client in without("clinic-b")]
    W, bias = solve_lda(federation.statistics(folders, LABELS), LAM)
    assert_close(model.W, W)
    assert model.classifier.bias is not None
    assert_close(model.classifier.bias, bias)
    assert audit(directory) == 0
    model.classifier.bias[0] += 1e-3
    save_model(directory / "model.safetensors", model)
    assert audit(directory) == 1


def test_unreadable_images_are_counted_of_those_who_are_in_the_statistics(
    federation: Federation,
) -> None:
    def counted() -> Any:
        return Outcome(directory).summary["unreadable_images"]

    bad = {client: federation.folder(client) / "owl" for client in ALL}
    for folder in bad.values():
        folder.mkdir(exist_ok=True)
        (folder / "bad.png").write_bytes(b"no image")
    settings: dict[str, Any] = {"keep_contributions": True, "max_unreadable": 0.5}
    directory = federation.run(ALL, **settings).directory
    assert counted() == 4
    assert fed3r(["forget", str(directory), "clinic-b"]) == 0
    assert counted() == 3
    federation.add_images(federation.folder("clinic-c"), ["cat", "elk"], seed=1)
    (bad["clinic-c"] / "worse.png").write_bytes(b"no image")
    resume(federation, ALL, replace="clinic-c", **settings)
    assert counted() == 4
    assert audit(directory) == 0


def test_what_was_not_kept_can_not_be_replaced(federation: Federation) -> None:
    federation.run(ALL)
    with pytest.raises(RunError, match="keep-contributions was false"):
        resume(federation, ALL, replace="clinic-c")


def test_features_of_other_settings_do_not_replace_anything(
    federation: Federation,
) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    federation.add_images(federation.folder("clinic-c"), ["owl"], seed=1)
    sentence = "extract-dtype must be 'float32', as in the run"
    with pytest.raises(RunError, match=sentence):
        resume(federation, ALL, replace="clinic-c", extract_dtype="bfloat16")
    assert not federation.grid.log, "nobody is asked"
    assert audit(directory) == 0


def test_all_can_be_forgotten_and_come_back(federation: Federation) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    for client in ALL:
        assert fed3r(["forget", str(directory), client]) == 0
        assert audit(directory) == 0
    sums = Outcome(directory).snapshot
    assert not sums.statistics.A.any() and not sums.contributions
    assert not (directory / "model.safetensors").exists()
    assert Outcome(directory).summary["accuracy"] is None
    for client in ALL:
        fed3r(["add", str(directory), "127.0.0.1:1", "--readmit", client])
    resume(federation, ALL)
    assert_model_of(federation, directory, ALL)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["forget", "clinic-z"], "CLIENT must be one of those in the stat.* 'clinic"),
        (["forget", "clinic-a"], r"must be asked .* give the SuperLink's HOST:PORT"),
        (["add", "nowhere"], "address must be HOST:PORT"),
        (["add", "127.0.0.1:1", "--readmit", "x"], "must have been forgotten, got 'x'"),
        (["solve", "--ridge-lambda", "-1"], "--ridge-lambda must be auto or a number"),
        (["solve", "--ridge-lambda", "nan"], "--ridge-lambda must be auto or a number"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(
    federation: Federation,
    capsys: pytest.CaptureFixture[str],
    arguments: Any,
    sentence: str,
) -> None:
    directory = federation.run(ALL).directory
    command, *others = arguments
    capsys.readouterr()
    assert fed3r([command, str(directory), *others]) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1
    assert re.search(sentence, said.err)


@pytest.mark.parametrize("command", ["add", "forget", "replace", "solve", "audit"])
def test_a_folder_that_is_no_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Any
) -> None:
    others = {"add": ["h:1"], "forget": ["x"], "replace": ["x", "h:1"]}
    assert fed3r([command, str(tmp_path), *others.get(command, [])]) == 1
    assert "must be the folder of a run" in capsys.readouterr().err


def test_solving_again_needs_no_client(
    federation: Federation, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = federation.run(ALL).directory
    assert fed3r(["solve", str(directory), "--ridge-lambda", "3"]) == 0
    assert Outcome(directory).model.ridge_lambda == 3.0
    assert "lambda    3" in capsys.readouterr().out
    assert audit(directory) == 0
    assert fed3r(["solve", str(directory), "--ridge-lambda", "0.5"]) == 0
    assert_model_of(federation, directory, ALL)
    other = tmp_path / "other.safetensors"
    assert fed3r(["solve", str(directory), "--output", str(other)]) == 0
    assert (load_model(other).ridge_lambda or 0) > 0
    assert Outcome(directory).model.ridge_lambda == 0.5


def test_test_images_at_the_server_give_an_accuracy(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    for client in ALL:
        shutil.copytree(
            federation.folder(client), federation.home / "test", dirs_exist_ok=True
        )
    path = str(federation.home / "test")
    directory = federation.run(ALL, data_path=path, keep_contributions=True).directory
    before = Outcome(directory).summary["accuracy"]
    capsys.readouterr()
    assert fed3r(["solve", str(directory), "--ridge-lambda", "0.5"]) == 0
    assert f"accuracy  {100 * before:.1f} %" in capsys.readouterr().out
    assert Outcome(directory).summary["accuracy"] == before
    fed3r(["forget", str(directory), "clinic-10"])
    assert Outcome(directory).summary["accuracy"] < before  # it alone had yaks


def test_a_run_at_work_is_left_alone(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    command = ["solve", str(federation.home / "runs" / "it")]
    grid = federation.make_grid(ALL)
    grid.before = at_first("train.statistics", lambda _: seen.append(fed3r(command)))
    federation.run(grid=grid)
    assert seen == [1]
    assert "must not be in use" in capsys.readouterr().err


def damage_ledger(directory: Path) -> None:
    path = directory / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "".join(lines[2:]))


def change_first_entry(directory: Path, **values: Any) -> None:
    path = directory / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= values
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def damage_statistics(directory: Path, factor: float, moved: int) -> None:
    snapshot = Outcome(directory).snapshot
    snapshot.statistics.A[0, 0] *= factor
    snapshot.statistics.counts[0] -= moved
    snapshot.statistics.counts[1] += moved
    save_snapshot(directory / "statistics.safetensors", snapshot)


def lose_file(directory: Path) -> None:
    next((directory / "contributions").iterdir()).unlink()


def leave_file(directory: Path) -> None:
    (directory / "contributions" / "stranger.safetensors").touch()


def damage_file(directory: Path) -> None:
    path = next((directory / "contributions").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def old_model(directory: Path) -> None:
    path = directory / "model.safetensors"
    model = load_model(path)
    model.W[0, 0] += 1e-6
    save_model(path, model)


def old_summary(directory: Path) -> None:
    path = directory / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_samples": 7}))


def cut_sums(directory: Path) -> None:
    path = directory / "statistics.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    "damage",
    [
        partial(change_first_entry, digest="0" * 64),
        partial(change_first_entry, num_samples=99),
        damage_ledger,
        partial(damage_statistics, factor=1.01, moved=0),
        partial(damage_statistics, factor=1.0, moved=1),
        *(lose_file, leave_file, damage_file, old_model, old_summary, cut_sums),
    ],
)
def test_the_audit_finds_every_disagreement(
    federation: Federation, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    assert audit(directory) == 0
    assert "WRONG" not in capsys.readouterr().out
    damage(directory)
    assert audit(directory) == 1
    said = capsys.readouterr()
    assert "WRONG" in said.out or "damaged" in said.err


def test_another_contribution_in_the_place_of_a_kept_one_is_found(
    federation: Federation,
) -> None:
    directory = federation.run(ALL, keep_contributions=True).directory
    sums, folder = Outcome(directory).snapshot, directory / "contributions"
    digests = sums.contributions
    one = contribution_path(folder, "clinic-a", digests["clinic-a"])
    y = torch.tensor([0, 0, 1])
    record = pack_statistics(torch.rand(3, 64), y, 5, dtype="float64")
    save_contribution(folder, "clinic-a", digests["clinic-a"], record, LABELS)
    assert one.exists()
    assert audit(directory) == 1


@pytest.mark.parametrize("later", [False, True], ids=["from the start", "added later"])
def test_a_fine_tuned_run_says_why_it_can_not_forget(
    federation: Federation, capsys: pytest.CaptureFixture[str], later: Any
) -> None:
    kept: dict[str, Any] = {"keep_contributions": True}
    if later:
        federation.run(ALL, **kept)
    tuned = federation.run(ALL, resume=later, finetune="lp", rounds=1, **kept)
    directory = tuned.directory
    capsys.readouterr()
    for command in (["forget", str(directory), "clinic-a"], ["solve", str(directory)]):
        assert fed3r(command) == 1
        assert "must be a run without fine-tuning" in capsys.readouterr().err
    assert audit(directory) == 0
