"""From a request to a client that trains: model, samples, control variates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from clients.node import Node
from clients.training_client import ControlVariates, TrainingClient
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.weights import digest_arrays
from fed3r_app.training.model import (
    SoftmaxModel,
    load_arrays,
    trainable_copy,
)
from fed3r_app.training.sgd import ImageBatches, ReadBatch, TrainingSettings
from fed3r_app.wire import (
    CONTROL,
    FIXED,
    RUNNING,
    TrainRequest,
    pack_arrays,
    unpack_arrays,
)
from fed3r_app.wire.parity import PARITY, add_parity


class TrainingNode:
    """A node in a round of fine-tuning, given the records of a request.

    Flower's state of the node keeps the fixed classifier and the control variate.
    """

    def __init__(self, context: Context, content: RecordDict) -> None:
        config = content.config_records["config"]
        self._node = Node(context, config)
        self._state = context.state
        self._content = content
        self._request = TrainRequest.read(config)
        self._node.check_map(self._request.feature_map)
        self._model = self._prepare_model()
        self._control = self._prepare_control()
        self.client = self._make_client()

    def complete(self, reply: RecordDict) -> None:
        """Add to a reply what travels beside the arrays, and remember the variate."""
        if PARITY in self._content:
            reply[PARITY] = ConfigRecord()
            add_parity(reply.config_records[PARITY], self._node.parity())
        if self._follows_batches:
            reply[RUNNING] = pack_arrays(self._model.running_statistics())
        if self._control and self.client.control_change:
            reply[CONTROL] = pack_arrays(self.client.control_change)
            self._state[CONTROL] = pack_arrays(self._control.client)

    @property
    def _follows_batches(self) -> bool:
        config = self._node.config
        return config.batch_norm == "train" and config.finetune != "lp"

    def _prepare_model(self) -> SoftmaxModel:
        """Return the model with everything in place that ``fit`` does not bring."""
        node, request, num_classes = self._node, self._request, self._node.num_classes
        if node.config.finetune == "lp":
            weight = torch.zeros(num_classes, request.feature_map.dim)
            bias = torch.zeros(num_classes) if request.bias else None
            return SoftmaxModel(None, weight, bias).to(node.device)
        follows = self._follows_batches
        model = _network(node.backbone, num_classes, request.bias, follows)
        if RUNNING in self._content:
            load_arrays(model, unpack_arrays(self._content.array_records[RUNNING]))
        if request.fixed_digest:
            load_arrays(model, self._fixed_classifier(request.fixed_digest))
        return model.to(node.device)

    def _fixed_classifier(self, digest: str) -> dict[str, Tensor]:
        """Return the classifier that stays as it is: just sent, or kept from before."""
        if FIXED in self._content:
            self._state[FIXED] = self._content.array_records[FIXED]
        if FIXED not in self._state:
            raise ValueError(
                "The fixed classifier is not here any more; send it again."
            )
        arrays = unpack_arrays(self._state.array_records[FIXED])
        if digest_arrays(arrays) != digest:
            raise ValueError("The fixed classifier here is another; send it again.")
        return arrays

    def _prepare_control(self) -> ControlVariates | None:
        if CONTROL not in self._content:
            return None
        server = unpack_arrays(self._content.array_records[CONTROL])
        if CONTROL in self._state:
            own = unpack_arrays(self._state.array_records[CONTROL])
        else:
            own = {name: torch.zeros_like(value) for name, value in server.items()}
        return ControlVariates(server, own, fresh=CONTROL not in self._state)

    def _make_client(self) -> TrainingClient:
        node, request = self._node, self._request
        read_batch, labels = self._samples()
        unchanged = None
        if request.report_fit:
            unchanged = read_batch
            if isinstance(read_batch, ImageBatches):
                unchanged = read_batch.unchanged()
        return TrainingClient(
            self._model,
            list(self._content.array_records["arrays"]),
            read_batch,
            labels.to(node.device),
            TrainingSettings(
                epochs=node.config.local_epochs,
                batch_size=node.config.batch_size,
                lr=request.lr,
                weight_decay=node.config.weight_decay,
                temperature=request.temperature,
                clip_norm=node.config.clip_norm,
                local_prior=node.config.uses_local_prior,
                train_batch_norm=self._follows_batches,
            ),
            seed=self._seed(),
            control=self._control,
            read_unchanged=unchanged,
        )

    def _samples(self) -> tuple[ReadBatch, Tensor]:
        """Return how batches are read, and the labels."""
        node, feature_map = self._node, self._request.feature_map
        if node.config.finetune == "lp":
            chunks = [(Z.float(), y) for Z, y in node.local_data().chunks(feature_map)]
            features = torch.cat([Z for Z, _ in chunks]).to(node.device)
            return features.__getitem__, torch.cat([y for _, y in chunks])
        augments = node.config.augments
        augment = np.random.default_rng(self._seed()) if augments else None
        read_batch, labels = node.image_batches(augment)
        return read_batch, torch.from_numpy(labels)

    def _seed(self) -> tuple[int, ...]:
        name = self._node.client_id.encode()
        return (self._node.config.seed, self._request.round, *name)


@lru_cache(maxsize=1)
def _network(
    backbone: Backbone, num_classes: int, bias: bool, follows_batches: bool
) -> SoftmaxModel:
    """Return a trainable network, made once per process; each round fills it anew.

    Running statistics come with a round only if they follow the batches: elsewhere
    they must never have moved, so that those are two networks.
    """
    weight = torch.zeros(num_classes, backbone.dim)
    model = SoftmaxModel(
        trainable_copy(backbone), weight, torch.zeros(num_classes) if bias else None
    )
    # A third faster on a CPU, and no slower elsewhere.
    return model.to(memory_format=torch.channels_last)
