"""Nodes that hold images of their own, each class in a folder, and runs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from PIL import Image
from torch import Tensor

from fed3r_app.config import Value
from fed3r_app.core import RidgeStatistics, solve_ridge
from tests.harness.grid import Before, SpyGrid
from tests.harness.pixels import LAM, SIZE, assert_close
from tests.harness.runs import AppRuns, Outcome

# Which classes the images of each node are of: none has all, some share one.
CLINICS = {
    "clinic-a": ("cat", "cat", "dog"),
    "clinic-b": ("dog", "owl", "owl", "owl"),
    "clinic-c": ("cat", "elk"),
    "clinic-10": ("yak", "yak", "owl"),
}
ALL, LABELS = tuple(CLINICS), ("cat", "dog", "elk", "owl", "yak")


def at_first(kind: str, action: Callable[[int], object]) -> Before:
    """Return a hook that calls an action ahead of the first request of a kind."""
    done: list[int] = []

    def before(message: Message, context: Context) -> None:
        if message.metadata.message_type == kind and not done:
            done.append(context.node_id)
            action(context.node_id)

    return before


class Federation:
    """Image folders of some clients, and runs on them."""

    def __init__(self, home: Path, runs: AppRuns) -> None:
        self.home = home
        self._runs = runs
        self.grid = SpyGrid()

    def folder(self, client: str) -> Path:
        return self.home / client

    def add_images(
        self, folder: Path, class_names: Iterable[str], seed: int = 0
    ) -> None:
        """Put an image into `folder` for each of the class names."""
        rng = np.random.default_rng([seed, *str(folder.name).encode()])
        for number, name in enumerate(class_names):
            (folder / name).mkdir(parents=True, exist_ok=True)
            grey = rng.integers(256, size=(SIZE, SIZE), dtype=np.uint8)
            Image.fromarray(grey).save(folder / name / f"{seed}-{number}.png")

    def node_config(self, client: str) -> dict[str, Value]:
        return {"data-path": str(self.folder(client)), "client-id": client}

    def make_grid(self, clients: Iterable[str], **settings: Any) -> SpyGrid:
        self.run_config = self._runs.config(settings)
        self.grid = SpyGrid(seed=None)
        for number, client in enumerate(clients):
            self.connect(101 + 7 * number, self.node_config(client))
        return self.grid

    def connect(self, node_id: int, node_config: Any) -> None:
        self.grid.connect(node_id, node_config, self.run_config)

    def restart(self, node_id: int, new_id: int) -> None:
        """Let a node go and come back under another id."""
        self.connect(new_id, self.grid.disconnect(node_id))

    def run(
        self, clients: Iterable[str] = (), grid: SpyGrid | None = None, **settings: Any
    ) -> Outcome:
        """Run the app on the nodes of some clients, or of a grid."""
        grid = grid or self.make_grid(clients, **settings)
        return self._runs.on(grid, self.run_config)

    def run_with_late(
        self, clients: Iterable[str], late: str, kind: str, **settings: Any
    ) -> Outcome:
        """Run the app; a node 999 comes at the first request of a kind."""
        grid, config = self.make_grid(clients, **settings), self.node_config(late)
        grid.before = at_first(kind, lambda _: self.connect(999, config))
        return self.run(grid=grid)

    def pooled(self, folders: Iterable[Path], labels: Sequence[str]) -> Tensor:
        """Return the ridge classifier of all images in some folders, (64, C)."""
        return solve_ridge(self.statistics(folders, labels), LAM)

    def statistics(
        self, folders: Iterable[Path], labels: Sequence[str]
    ) -> RidgeStatistics:
        """Return the statistics of all images in some folders."""
        rows, y = [], []
        for folder in folders:
            for path in sorted(folder.rglob("*.png")):
                rows.append(np.asarray(Image.open(path)).reshape(-1) / np.float32(255))
                y.append(labels.index(path.parent.name))
        Z = torch.tensor(np.array(rows, dtype=np.float32))
        return RidgeStatistics.of(Z, torch.tensor(y), len(labels))

    def assert_pooled(self, outcome: Outcome, clients: Iterable[str] = ALL) -> None:
        """Check that a run's classifier is that of some clients' pooled images."""
        model = outcome.model
        folders = [self.folder(client) for client in clients]
        assert_close(model.W, self.pooled(folders, model.class_names))
