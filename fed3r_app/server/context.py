"""What all phases of a run share: settings, data, backbone, directory, clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import INFO, WARNING

import torch
from flwr.app import ConfigRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.config import Config
from fed3r_app.core import Classifier, FeatureMap
from fed3r_app.data import dataset_traits
from fed3r_app.data.reading import V0_1_READING
from fed3r_app.evaluation import EvaluationSet, ServerData
from fed3r_app.features.backbone import Backbone, load_backbone, resolve_device
from fed3r_app.features.flops import forward_flops
from fed3r_app.features.parity import measure_parity
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.files.row_cache import cache_dir
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.runs.recorder import Recorder
from fed3r_app.runs.snapshots import Setting
from fed3r_app.runs.statistics_store import StatisticsStore
from fed3r_app.runs.trackers import Guarded, check_tracker
from fed3r_app.server.preflight import new_spec
from fed3r_app.wire import ParityCheck, with_labels, with_reading
from fed3r_app.words import RESULTS
from strategies import ClientDiscovery, ClientRegistry

# The keys of the run config that a client's features depend on, besides the backbone.
FEATURE_KEYS = ("dataset", "test-share", "partition", "alpha", "seed", "extract-dtype")


@dataclass(eq=False)
class RunContext:
    """One run at the server.

    Parameters
    ----------
    data : ServerData
        The images that the server can read.
    directory : RunDirectory
        Where the run is written.
    device : torch.device
        Where the server computes.

    Attributes
    ----------
    tracker : Guarded
        Gets the numbers of the run, too.
    test_features : Tensor of shape (n, d) or None
        Features of the test images, where the server has any; made by ``prepare``.
    class_names : tuple of str
        All classes, in the order of their numbers. Where the images are the nodes' own,
        they are known once the clients are discovered.
    state : StatisticsStore
        What the run has saved.
    discovery : ClientDiscovery
        Finds clients; made when they are first looked for.
    recorder : Recorder
        Adds up costs and writes metrics; made once the clients are known.
    """

    config: Config
    grid: Grid
    data: ServerData
    backbone: Backbone
    directory: RunDirectory
    device: torch.device
    tracker: Guarded = field(default_factory=Guarded, init=False)
    test_features: Tensor | None = field(default=None, init=False)
    class_names: tuple[str, ...] = field(default=(), init=False)
    state: StatisticsStore = field(init=False)
    discovery: ClientDiscovery = field(init=False)
    recorder: Recorder = field(init=False)

    @classmethod
    def open(cls, grid: Grid, config: Config) -> RunContext:
        """Return the context of a run that begins, or is resumed.

        Bad settings are refused here, before any client is asked.
        """
        device = resolve_device(config.device)
        check_tracker(config.tracker)
        data = ServerData.load(config)
        if data.dataset and not data.test_images:
            hint = (
                " test-share=0.2 holds some out."
                if dataset_traits(config.dataset).may_hold_out
                else ""
            )
            log(WARNING, "%s has no test images: no accuracy.%s", config.dataset, hint)
        if not config.resume:  # a new run leaves nothing behind if its settings fail
            backbone = load_backbone(new_spec(config), data.feature_dim)
        directory = RunDirectory.open(config.output_dir, config.run_name, config.resume)
        log(INFO, "%s%s", RESULTS, directory.path)
        if config.resume:
            backbone = load_backbone(_earlier_spec(config, directory), data.feature_dim)
        else:  # that of a resumed run is of its beginning, but for the method
            directory.write_config(config.to_run_config())
        context = cls(config, grid, data, backbone, directory, device)
        context.class_names = data.class_names
        context.state = StatisticsStore(directory, config.keep_contributions)
        return context

    def prepare(self) -> None:
        """Do what takes time and needs no client, while Flower's are starting."""
        config, backbone = self.config, self.backbone
        self.test_features = self.data.test_features(
            backbone, self.device, config.extract_dtype
        )
        _ = self.forward_flops  # may need the network

    @property
    def registry(self) -> ClientRegistry:
        """The clients that have been found."""
        return self.discovery.registry

    @property
    def made_the_split(self) -> bool:
        """Whether the server itself has dealt the images out, as in simulation."""
        return not self.data.is_local

    @property
    def has_clients(self) -> bool:
        """Whether clients have been looked for."""
        return hasattr(self, "discovery")

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    def request(self, config: ConfigRecord) -> ConfigRecord:
        """Return a request's config with how images are read, and the label space.

        The latter where clients need it.
        """
        spec = self.backbone.spec
        config = with_reading(config, spec.recipe, spec.image_size)
        return with_labels(config, self.class_names if self.data.is_local else ())

    @cached_property
    def parity(self) -> ParityCheck | None:
        """What a client must make of the built-in picture; None without a network."""
        dtype = self.config.extract_dtype
        own = measure_parity(self.backbone, self.device, dtype, cache_dir())
        return None if own is None else ParityCheck(own, dtype)

    def feature_fingerprint(self) -> dict[str, Setting]:
        """Return what must be the same for features to be added up."""
        run_config = self.config.to_run_config()
        return {
            **{key: run_config[key] for key in FEATURE_KEYS},
            "data-identity": self.data.identity(self.backbone.spec.recipe),
            **self.backbone.spec.fingerprint(),
        }

    def evaluation_set(
        self, feature_map: FeatureMap, features: Tensor | None = None
    ) -> EvaluationSet | None:
        """Return the test images under a feature map, where there are any.

        ``features`` may be those of another backbone than the run's.
        """
        features = self.test_features if features is None else features
        if features is None:
            return None
        labels = self.data.test_labels(self.class_names)
        return EvaluationSet(features, labels, feature_map, self.device)

    def saved_model(
        self,
        classifier: Classifier,
        feature_map: FeatureMap,
        ridge_lambda: float | None = None,
        backbone_arrays: dict[str, Tensor] | None = None,
    ) -> SavedModel:
        """Return a classifier with all that is needed to use it."""
        return SavedModel(
            classifier=classifier,
            class_names=self.class_names,
            method=self.config.method,
            ridge_lambda=ridge_lambda,
            backbone=self.backbone.spec,
            feature_map=feature_map,
            backbone_arrays=backbone_arrays or {},
        )

    @cached_property
    def forward_flops(self) -> int:
        """FLOPs of one image through the backbone, as the paper counts."""
        return forward_flops(self.backbone, cache_dir())


def _earlier_spec(config: Config, directory: RunDirectory) -> BackboneSpec:
    """Return the backbone of a run that is resumed: it reads images as it did."""
    recipe = directory.read_recipe()
    spec = replace(new_spec(config), recipe=recipe)
    if config.image_size not in ("auto", 0):
        return spec
    begun = Config.from_run_config(directory.read_config())
    # In 0.1, 0 was the weights' own size for digits, too.
    is_own = recipe == V0_1_READING and not begun.image_size
    return replace(spec, image_size=0 if is_own else begun.input_size)
