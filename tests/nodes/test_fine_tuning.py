"""Fine-tuning on nodes that join late, leave or start anew."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.data.reading import Reading
from tests.harness.nodes import ALL, LABELS, Federation, at_first
from tests.harness.spies import spy

LP: dict[str, Any] = {
    "finetune": "lp",
    "lr": 0.01,
    "labels": ",".join(LABELS),
    "max_retries": 0,
}


def test_who_comes_between_two_parts_is_not_in_the_fine_tuning(
    federation: Federation,
) -> None:
    first = ALL[:3]
    whole = federation.run(first, run_name="whole", rounds=2, **LP)
    federation.run(first, rounds=1, **LP)
    outcome = federation.run(ALL, rounds=2, resume=True, **LP)
    assert torch.equal(outcome.model.W, whole.model.W)
    # How the start fits is asked before the training and after it.
    asked = {"query.hello": 4, "query.temperature": 6, "train": 3}
    assert federation.grid.asked == asked
    assert outcome.summary["clients"] == 3
    assert outcome.summary["status"] == "complete"


def test_a_client_that_is_gone_when_the_fine_tuning_goes_on_is_done_without(
    federation: Federation,
) -> None:
    federation.run(ALL, rounds=1, **LP)
    outcome = federation.run(ALL[1:], rounds=2, resume=True, **LP)
    asked = {"query.hello": 3, "query.temperature": 6, "train": 3}
    assert federation.grid.asked == asked
    assert outcome.summary["clients"] == 4


ONE_BY_ONE: dict[str, Any] = LP | {"clients_per_round": 1, "rounds": 12}


def test_a_node_that_is_started_anew_trains_on_under_its_new_id(
    federation: Federation,
) -> None:
    whole = federation.run(ALL, run_name="whole", **ONE_BY_ONE)
    grid = federation.make_grid(ALL, **ONE_BY_ONE)

    def restart(node: Any) -> None:
        for number, other in enumerate(list(grid.get_node_ids())):
            if other != node:
                federation.restart(other, 900 + number)

    grid.before = at_first("train", restart)
    outcome = federation.run(grid=grid)
    assert torch.equal(outcome.model.W, whole.model.W)
    trained = {node for node, kind in grid.log if kind == "train"}
    assert sum(node >= 900 for node in trained) == 3


def test_who_joins_a_fine_tuning_is_not_asked_to_train(federation: Federation) -> None:
    first = ALL[:3]
    whole = federation.run(first, run_name="whole", **ONE_BY_ONE)
    outcome = federation.run_with_late(first, ALL[3], "train", **ONE_BY_ONE)
    assert torch.equal(outcome.model.W, whole.model.W)
    assert [kind for node, kind in outcome.grid.log if node == 999] == ["query.hello"]
    assert outcome.summary["clients"] == 3


# The features of a random start are made by nobody: it is trained at once.
RANDOM_START: dict[str, Any] = {
    "method": "none",
    "finetune": "full",
    "backbone": "shufflenet_v2_x0_5",
    "weights": "random",
    "image_size": 32,
    "lr": 1e-3,
}


@pytest.mark.parametrize("kind", ["local", "imagefolder"])
def test_a_round_decodes_each_image_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = federation.folder("clinic-b")
    (folder / "owl" / "bad.png").write_bytes(b"not an image")
    settings: dict[str, Any] = RANDOM_START | {"rounds": 3, "dataset": kind}
    if kind == "local":
        grid = federation.make_grid(["clinic-b"], **settings)
    else:
        grid = federation.make_grid([], data_path=str(folder), **settings)
        federation.connect(101, {"partition-id": 0, "num-partitions": 1})
    read = spy(monkeypatch, Reading, "read")
    outcome = federation.run(grid=grid)
    files = [Path(name) for _, _, name in read if name.endswith(".png")]
    times = Counter(file.name for file in files)
    assert times.pop("bad.png") == 3  # it may have been mended
    assert len(times) == 4 and set(times.values()) == {3}
    assert {each.num_examples for each in outcome.trained} == {4}
