"""What all phases of a run share: settings, data, backbone, directory, clients."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from logging import INFO, WARNING

from flwr.app import ConfigRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.config import Config
from fed3r_app.core import FeatureMap
from fed3r_app.data.label_space import LabelSpace
from fed3r_app.evaluation import EvaluationSet, ServerData
from fed3r_app.features.backbone import load_backbone, resolve_device
from fed3r_app.features.cache import cache_dir
from fed3r_app.features.flops import forward_flops
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.progress import Progress
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.recorder import Recorder
from fed3r_app.runs.snapshots import Setting
from fed3r_app.wire import with_labels
from strategies import IN_FLIGHT, ClientDiscovery, ClientRegistry, natural_key

# The keys of the run config that a client's features depend on.
FEATURE_KEYS = (*("dataset", "partition", "alpha", "seed", "extract-dtype"),)


class RunContext:
    """One run at the server.

    Parameters
    ----------
    config : Config
        Its settings. Bad ones are refused here, before any client is asked.

    Attributes
    ----------
    is_local : bool
        Whether the images are the nodes' own. The classes are then not known before
        the clients are met.
    class_names : tuple of str
        All classes, in the order of their numbers.
    test_images : ImageSet or None
        What the server holds to evaluate on.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        self._data = ServerData.load(config.dataset, config.data_path)
        self.is_local = self._data.is_local
        self.test_images = self._data.test_images
        if self._data.dataset and not self.test_images:
            log(WARNING, "%s has no test images: no accuracy.", config.dataset)
        self.class_names = self._data.class_names
        spec = BackboneSpec(config.backbone, config.weights, config.image_size)
        self.backbone = load_backbone(spec, self._data.feature_dim)
        self.directory = RunDirectory.open(
            config.output_dir, config.run_name, config.resume
        )
        if not config.resume:  # the config of a resumed run is that of its beginning
            self.directory.write_config(config.to_run_config())
        self.test_features = self._data.test_features(
            self.backbone, self.device, config.extract_dtype
        )
        # Counted now, while Flower's clients are starting: it may need the network.
        _ = self.forward_flops

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    def discover_clients(
        self,
        grid: Grid,
        *,
        with_moments: bool,
        earlier_classes: Sequence[str] = (),
        forgotten: Collection[str] = (),
        counted: Collection[str] = (),
        only: Collection[str] = (),
    ) -> ClientRegistry:
        """Return who takes part.

        Parameters
        ----------
        grid : Grid
            Where the nodes connect.
        with_moments : bool
            Also ask for the sums from which the kernel width is chosen.
        earlier_classes : sequence of str
            Classes that an earlier part of the run knew.
        forgotten : collection of str
            Clients that are not to be asked.
        counted : collection of str
            Clients that an earlier part of the run counted: they need not be there.
        only : collection of str
            The clients that a fine-tuning began with: no others take part; () for all.
        """
        log(INFO, "Waiting for the clients …")
        config = self.config
        self._reception = ClientDiscovery(
            grid,
            timeout=config.round_timeout,
            max_retries=config.max_retries,
            strict=config.min_clients == 0,
            # Real nodes have a machine each: all at once.
            in_flight=sys.maxsize if self.is_local else IN_FLIGHT,
            progress=Progress("clients said hello"),
        )
        self._reception.gather(config.wait_for, with_moments)
        registry = self._reception.registry
        registry.leave_out(forgotten)
        registry.leave_out(_others(registry.clients, only))
        if self.is_local:
            self._fix_labels([*registry.class_names.values(), earlier_classes])
            if self._refuse_strangers(registry.clients) and not config.min_clients:
                raise ValueError(next(iter(registry.refused.values())))
        num_clients = len({*registry.clients, *counted})
        if config.min_clients > num_clients:
            raise ValueError(
                f"min-clients must be <= {num_clients}, the number of clients, got "
                f"{config.min_clients}. {' '.join(registry.refused.values())}".rstrip()
            )
        log(INFO, "%d clients", len(registry.clients))
        return registry

    def admit_newcomers(
        self,
        recorder: Recorder,
        *,
        forgotten: Collection[str] = (),
        only: Collection[str] = (),
    ) -> list[str]:
        """Return clients that have come since, or have come back as another node.

        Parameters
        ----------
        recorder : Recorder
            Where the costs of their hellos go.
        forgotten, only : collection of str
            See `discover_clients`.
        """
        registry = self._reception.registry
        up, down = registry.upload_bytes, registry.download_bytes
        newcomers = set(self._reception.welcome_newcomers())
        recorder.add_costs(
            up=registry.upload_bytes - up, down=registry.download_bytes - down
        )
        left_out = {*forgotten, *_others(newcomers, only)}
        registry.leave_out(left_out)
        newcomers -= left_out
        strangers = self._refuse_strangers(newcomers) if self.is_local else []
        welcomed = sorted(newcomers - set(strangers), key=natural_key)
        if welcomed:
            log(INFO, "%d clients joined: %s", len(welcomed), ", ".join(welcomed))
        return welcomed

    def request(self, config: ConfigRecord) -> ConfigRecord:
        """Return a request's config with the label space, where clients need it."""
        return with_labels(config, self.class_names if self.is_local else ())

    @property
    def data_identity(self) -> str | None:
        """The digest of the data set; None where the images are the nodes' own."""
        return self._data.identity

    def feature_fingerprint(self) -> dict[str, Setting]:
        """Return what must be the same for features to be added up."""
        run_config = self.config.to_run_config()
        return {
            **{key: run_config[key] for key in FEATURE_KEYS},
            "data-identity": self.data_identity,
            **self.backbone.spec.fingerprint(),
        }

    def evaluation_set(
        self, feature_map: FeatureMap, features: Tensor | None = None
    ) -> EvaluationSet | None:
        """Return the held-out images under a feature map, where there are any.

        Parameters
        ----------
        feature_map : FeatureMap
            From backbone features to those that are classified.
        features : Tensor or None
            Features of another backbone than the run's.
        """
        features = self.test_features if features is None else features
        if features is None:
            return None
        labels = self._data.test_labels(self.class_names)
        return EvaluationSet(features, labels, feature_map, self.device)

    @cached_property
    def forward_flops(self) -> int:
        """FLOPs of one image through the backbone, as the paper counts."""
        return forward_flops(self.backbone, cache_dir())

    def _fix_labels(self, known: Iterable[Sequence[str]]) -> None:
        """Fix the label space: the given one, or all classes that are known."""
        given = self.config.given_labels
        space = LabelSpace(given) if given else LabelSpace.union(known)
        self.class_names = space.names
        # Refuses test images of other classes now, not at the end.
        self._data.test_labels(space.names)
        log(INFO, "%d classes: %s", len(space.names), ", ".join(space.names[:20]))

    def _refuse_strangers(self, clients: Iterable[str]) -> list[str]:
        """Leave out the clients that have other classes; return them."""
        registry, space = self._reception.registry, LabelSpace(self.class_names)
        refused = []
        for client in clients:
            if refusal := space.refusal(
                f"Client {client}", registry.class_names[client]
            ):
                registry.refuse(client, refusal)
                refused.append(client)
        return refused


def _others(clients: Iterable[str], only: Collection[str]) -> list[str]:
    """Return the clients that are not among some, with a line of log; () are all."""
    among = set(only)
    others = [client for client in clients if only and client not in among]
    if others:
        named = ", ".join(others[:10])
        log(INFO, "Not in the fine-tuning, which began without them: %s", named)
    return others
