"""What all phases of a run share: settings, data, backbone, directory, clients."""

from __future__ import annotations

from functools import cached_property
from logging import INFO, WARNING

import numpy as np
import torch
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.backbones import load_backbone
from fed3r_app.config import Config
from fed3r_app.core import FeatureMap
from fed3r_app.data import load_dataset
from fed3r_app.devices import cache_dir, resolve_device
from fed3r_app.features import cached_features
from fed3r_app.flop_memory import forward_flops
from fed3r_app.held_out import HeldOut
from fed3r_app.progress import Progress
from fed3r_app.run_directory import RunDirectory
from strategies import Roster, meet_clients


class Session:
    """One run at the server.

    Parameters
    ----------
    config : Config
        Its settings. Bad ones are refused here, before any client is asked.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        self.dataset = load_dataset(config.dataset, config.data_path)
        self.backbone = load_backbone(
            config.backbone,
            config.weights,
            config.image_size,
            self.dataset.feature_dim,
        )
        self.num_classes = len(self.dataset.class_names)
        self.directory = RunDirectory.open(
            config.output_dir, config.run_name, config.resume
        )
        if not config.resume:  # the config of a resumed run is that of its beginning
            self.directory.write_config(config.to_run_config())
        self.test_labels = self._test_labels()
        self.test_features = self._test_features()
        # Flower's clients are starting meanwhile: build the network now, not later.
        _ = self.forward_flops

    def meet(self, grid: Grid, *, with_moments: bool) -> Roster:
        """Return who takes part."""
        log(INFO, "Waiting for the clients …")
        roster = meet_clients(
            grid,
            wait_for=self.config.wait_for,
            timeout=self.config.round_timeout,
            max_retries=self.config.max_retries,
            with_moments=with_moments,
            progress=Progress("clients said hello"),
        )
        num_clients = len(roster.clients)
        if self.config.min_clients > num_clients:
            raise ValueError(
                f"min-clients must be <= {num_clients}, the number of clients, got "
                f"{self.config.min_clients}."
            )
        log(INFO, "%d clients", num_clients)
        return roster

    def held_out(
        self, feature_map: FeatureMap, features: Tensor | None = None
    ) -> HeldOut | None:
        """Return the held-out images under a feature map, where there are any.

        Parameters
        ----------
        feature_map : FeatureMap
            From backbone features to those that are classified.
        features : Tensor or None
            Features of another backbone than the run's.
        """
        features = self.test_features if features is None else features
        if features is None or self.test_labels is None:
            return None
        return HeldOut(features, self.test_labels, feature_map, self.device)

    @cached_property
    def forward_flops(self) -> int:
        """FLOPs of one image through the backbone, as the paper counts."""
        return forward_flops(self.backbone, cache_dir())

    def _test_labels(self) -> Tensor | None:
        test = self.dataset.test
        if test is None:
            log(WARNING, "%s has no test images: no accuracy.", self.dataset.name)
            return None
        return torch.from_numpy(test.labels.copy())

    def _test_features(self) -> Tensor | None:
        test = self.dataset.test
        if test is None:
            return None
        return cached_features(
            self.backbone,
            test,
            np.arange(len(test)),
            device=self.device,
            dtype=self.config.extract_dtype,
            cache_dir=cache_dir(),
            progress=Progress("test images"),
        )
