"""The whole app under secure aggregation: exact, whoever drops out."""

import time
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fed3r_app import cli
from fed3r_app.client_app import app as client_app
from fed3r_app.core import FeatureMap, class_means, solve_lda
from fed3r_app.errors import RunError
from fed3r_app.features.backbone import load_backbone
from fed3r_app.privacy.secagg import IntegerStatistics
from fed3r_app.runs.snapshots import save_snapshot
from fed3r_app.wire import secagg as secure
from tests.harness.pixels import LAM, assert_plain, rounded_statistics
from tests.harness.runs import AppRuns

STAGES = ("query.keys", "query.share", "query.masked", "query.unmask")


def drop(*whom: Any, kinds: Any) -> Any:
    """Lose the replies of some clients to some requests, every time."""
    return lambda client, kind: client in whom and kind in kinds


def once(whom: Any, kinds: Any, how: object = True) -> Any:
    """Lose the first reply of some clients to some requests, or the request."""
    left = set(product(whom, kinds))

    def silent(client: Any, kind: str) -> Any:
        if (client, kind) not in left:
            return False
        left.discard((client, kind))
        return how

    return silent


def test_fifty_clients_give_the_plain_classifier_bit_for_bit(run: AppRuns) -> None:
    outcome = run(50)
    assert_plain(outcome, range(50), 50)
    assert outcome.summary["clients_counted"] == 50
    assert outcome.summary["rounds"] == 1
    asked = (e.request.config_records["secagg"] for e in outcome.grid.of(STAGES[1]))
    assert [len(record["members"]) for record in asked] == [10] * 50


@pytest.mark.parametrize("stage", STAGES)
def test_fifty_clients_with_dropouts_at_any_stage(run: AppRuns, stage: Any) -> None:
    """Of five groups of ten, some lose nobody, some one or two."""
    gone = {3, 11, 17, 29, 42}
    outcome = run(50, drop(*gone, kinds=[stage]), min_clients=40, max_retries=0)
    # Who is silent at the last request has sent its vector before.
    summed = set(range(50)) - (set() if stage == "query.unmask" else gone)
    assert_plain(outcome, sorted(summed), 50)
    assert outcome.summary["clients_counted"] == len(summed)


def test_clients_that_drop_out_at_all_stages_at_once(run: AppRuns) -> None:
    lost = dict(zip((1, 12, 23, 34), STAGES, strict=True))
    outcome = run(
        50, lambda c, kind: lost.get(c) == kind, min_clients=40, max_retries=0
    )
    assert_plain(outcome, sorted(set(range(50)) - {1, 12, 23}), 50)


def test_who_drops_out_is_asked_again_in_another_group(run: AppRuns) -> None:
    outcome = run(20, once([1, 5, 9], ["query.masked"]))
    assert_plain(outcome, range(20), 20)
    assert outcome.summary["rounds"] == 2
    assert sorted(e.client for e in outcome.grid.of("query.masked")[20:]) == [1, 5, 9]


def test_a_group_below_its_threshold_is_asked_again_with_new_keys(run: AppRuns) -> None:
    outcome = run(5, once([0, 1, 2], ["query.share"]))
    assert_plain(outcome, range(5), 5)
    for client in range(5):
        one, other = (e.reply["secagg"] for e in outcome.grid.of("query.keys", client))
        assert one["sealing"] != other["sealing"]
        assert one["masking"] != other["masking"]


def test_two_attempts_of_a_client_share_no_mask(run: AppRuns) -> None:
    """The same images in two attempts: what was sent has nothing in common."""
    outcome = run(5, once([0, 1, 2], ["query.masked"]))
    replies = (e.reply["arrays"] for e in outcome.grid.of("query.masked", client=4))
    one, other = (reply["masked"].numpy() for reply in replies)
    assert not set(one.tolist()) & set(other.tolist())
    # Under a mask in common the difference would be 0, or a part of the protocol.
    assert len(set((one - other).tolist())) == len(one)


def test_who_answered_in_vain_is_lost_and_said_to_be(
    run: AppRuns, tmp_path: Path
) -> None:
    """Three of five don't hear the last request: the others can't answer again."""
    unheard = once([0, 1, 2], ["query.unmask"], how="unheard")
    with pytest.raises(
        RunError,
        match=r"3 of 5 clients were counted; missing: 3, 4\. Client 3: lost: it "
        r"answered the last request, but only 2 of its group of 5 answered",
    ):
        run(5, unheard)
    asked = [e.client for e in run.grid.of("query.keys")]
    assert sorted(asked) == [0, 0, 1, 1, 2, 2, 3, 4]  # who is lost is left alone
    ledger = (tmp_path / "runs" / "it" / "ledger.jsonl").read_text()
    assert ledger.count("lost: it answered the last request") == 2


def test_an_answer_that_got_lost_is_not_given_again(run: AppRuns) -> None:
    with pytest.raises(RunError, match="0 of 5 clients were counted"):
        run(5, once([0, 1, 2], ["query.unmask"]))
    refused = [e for e in run.grid.of("query.keys") if e.reply is None]
    assert {e.client for e in refused} == {0, 1, 2}


def test_a_client_answers_the_last_request_once(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(3)
    assert len(outcome.grid.of("query.unmask")) == 3
    context = next(iter(outcome.grid.contexts.values()))
    assert "secagg" not in context.state  # keys are deleted after
    # The mark is on disk, so that a node that starts anew still knows.
    context.state = RecordDict()
    content = secure.ask_keys("new", ConfigRecord())
    request = Message(content, context.node_id, "query.keys")
    reply = client_app(request, context)
    assert reply.has_error()
    assert "does so once only" in caplog.text


def test_a_node_that_restarts_between_requests_drops_out(run: AppRuns) -> None:
    def forget(message: Message, context: Context) -> None:
        asked = context.node_config["partition-id"], message.metadata.message_type
        if asked == (2, "query.masked"):
            context.state.clear()

    outcome = run(5, before=forget, min_clients=4, max_retries=0)
    assert_plain(outcome, [0, 1, 3, 4], 5)


def test_rounds_take_whole_groups(run: AppRuns) -> None:
    outcome = run(14, secagg_group=4, clients_per_round=2)
    assert_plain(outcome, range(14), 14)
    assert outcome.summary["rounds"] == 4  # of 4, 4, 3 and 3 clients


def test_the_sums_are_saved_after_each_round_not_after_each_group(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []

    def save(path: Path, snapshot: Any) -> None:
        saved.append(len(snapshot.contributions))
        save_snapshot(path, snapshot)

    monkeypatch.setattr("fed3r_app.runs.statistics_store.save_snapshot", save)
    run(50, clients_per_round=20)
    assert saved == [20, 40, 50, 50]  # and at the end


def test_requests_without_images_load_no_backbone(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Mock(wraps=load_backbone)
    monkeypatch.setattr("fed3r_app.features.backbone.load_backbone", load)
    grid = run(3).grid
    # One for what the node makes of the built-in picture, one for its images.
    assert load.call_count == len(grid.of("query.keys") + grid.of("query.masked")) == 6


def test_random_features_send_cosines(run: AppRuns) -> None:
    feature_map = FeatureMap(64, rf_dim=100, rf_sigma=3.0)
    outcome = run(8, method="fed3r-rf", rf_dim=100, rf_sigma=3.0)
    assert_plain(outcome, range(8), 8, feature_map)
    assert outcome.summary["accuracy"] > 0.9


def test_other_heads_and_an_intercept_work_too(run: AppRuns) -> None:
    outcome = run(8, method="fedncm")
    expected = rounded_statistics(range(8), 8)
    assert torch.equal(outcome.statistics.b, expected.b)
    assert torch.equal(outcome.weights, class_means(expected))
    assert outcome.summary["heads"].keys() == {"fed3r", "fedncm", "lda"}
    outcome = run(8, method="lda", run_name="discriminant")
    W, bias = solve_lda(expected, LAM)
    assert torch.equal(outcome.weights, W)
    assert outcome.model.classifier.bias is not None
    assert torch.equal(outcome.model.classifier.bias, bias)
    outcome = run(8, fit_intercept=True, run_name="intercept")
    expected = rounded_statistics(range(8), 8, FeatureMap(64, intercept=True))
    assert torch.equal(outcome.statistics.A, expected.A)


@pytest.mark.parametrize("method", ["fed3r", "fed3r-rf"])
def test_a_run_that_goes_on_gives_the_same_bits(run: AppRuns, method: Any) -> None:
    rf: dict[str, Any] = {"method": method, "rf_dim": 90, "rf_sigma": 3.0}
    settings: dict[str, Any] = {"secagg_group": 4, "max_retries": 0, **rf}
    with pytest.raises(RunError, match=r"of 8 clients were counted; missing"):
        run(8, drop(0, 1, 2, kinds=["query.keys"]), **settings)
    outcome = run(8, resume=True, **settings)
    feature_map = FeatureMap(64, 90, 3.0) if method == "fed3r-rf" else None
    assert_plain(outcome, range(8), 8, feature_map)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"finetune": "lp"}, "weights would travel in the clear"),
        ({"keep_contributions": True}, "only sums over groups to keep"),
        ({"max_client_samples": 5}, "number of a client.s images is secret"),
        ({"client_evaluation": True}, "how many images it has"),
        ({"method": "fed3r-rf"}, "the sum of its features"),
        ({"sampling": "with-replacement", "clients_per_round": 3}, "are disjoint"),
        ({"dataset": "local"}, "labels must name all .*, got '': each client would"),
        ({"dataset": "local", "labels": ", "}, "labels must name all .*, got ', '"),
        ({"forget": "1", "resume": True}, "forget must be '' .*, got '1': a sum over"),
        ({"secagg_group": 2}, "secagg-group must be a whole number >= 3"),
        ({"secagg_threshold": 0.5}, "secagg-threshold must be a number > 0.5"),
        ({"backbone": "resnet18", "weights": "random"}, "range of this backbone's"),
        ({"secagg_max_samples": 500}, "secagg-max-samples must be at least"),
    ],
)
def test_settings_that_would_tell_of_single_clients_are_refused(
    run: AppRuns, settings: Any, sentence: str
) -> None:
    with pytest.raises(RunError, match=sentence):
        run(5, **settings)


def test_features_beyond_the_largest_are_named_in_the_log_of_the_node_alone(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match="client 0 failed, see this node's log"):
        run(5, secagg_max_feature=0.5)
    assert "secagg-max-feature = 0.5, got one" in caplog.text


def test_fewer_than_three_clients_are_refused(run: AppRuns) -> None:
    with pytest.raises(RunError, match="must be met by 3 clients or more, got 2"):
        run(2)


def test_nobody_can_be_taken_out_of_a_sum_over_a_group(
    run: AppRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(3)
    assert cli.main(["forget", str(outcome.directory), "1"]) == 1
    assert "a sum over a group can't be taken apart" in capsys.readouterr().err
    assert cli.main(["audit", str(outcome.directory)]) == 0


def test_a_saved_run_can_be_solved_anew(run: AppRuns) -> None:
    outcome = run(6, method="fed3r-rf", rf_dim=50, rf_sigma=3.0)
    W = outcome.weights
    assert cli.main(["solve", str(outcome.directory), "--ridge-lambda", "0.5"]) == 0
    assert torch.equal(outcome.weights, W)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every client send a sum that no features can have."""
    honest = IntegerStatistics.vector

    def send(self: Any) -> Any:
        vector = honest(self)
        vector[0] += np.uint64(2**60)
        return vector

    monkeypatch.setattr(IntegerStatistics, "vector", send)


@pytest.mark.usefixtures("hostile")
def test_a_hostile_vector_is_noticed_in_the_sum_of_its_group(run: AppRuns) -> None:
    """Which client it was nobody can tell: the group is lost, nothing is counted."""
    with pytest.raises(RunError, match=r"0 of 3 .* sum was refused: A must be a sum"):
        run(3)


@pytest.mark.usefixtures("hostile")
def test_who_is_in_a_sum_that_was_seen_and_refused_is_in_no_other(
    run: AppRuns, tmp_path: Path
) -> None:
    """Three of eight don't hear the last request; five are enough to see the sum."""
    with pytest.raises(RunError, match="0 of 8 clients were counted"):
        run(8, once([0, 1, 2], ["query.unmask"], how="unheard"))
    assert len(run.grid.of("query.keys")) == 8
    ledger = (tmp_path / "runs" / "it" / "ledger.jsonl").read_text()
    assert ledger.count("lost: it is in the sum, but its group's sum was") == 3


def test_groups_of_secure_aggregation_wait_for_their_members(
    run: AppRuns,
) -> None:
    since: list[float] = []

    def gone(message: Any) -> bool:
        """Say that a node is gone for a second, though it is listed."""
        if message.metadata.message_type != "query.keys":
            return False
        since.append(time.monotonic())
        return message.metadata.dst_node_id == 2 and time.monotonic() < since[0] + 1

    outcome = run(3, gone=gone, round_timeout=20.0, max_retries=0)
    assert outcome.summary["clients_counted"] == 3
    keys = [node for node, kind in run.grid.log if kind == "query.keys"]
    assert len(keys) <= 9
