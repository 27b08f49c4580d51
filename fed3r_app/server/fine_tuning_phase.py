"""The fine-tuning phase: Flower's optimisers on a softmax that starts well."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fed3r_app.core import METRICS, Classifier
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.runs.snapshots import (
    Checkpoint,
    Setting,
    check_settings,
    save_checkpoint,
)
from fed3r_app.server.context import RunContext
from fed3r_app.server.cost_meter import add_training_costs
from fed3r_app.server.discovery_phase import admit_newcomers
from fed3r_app.server.initial_classifier import InitialClassifier
from fed3r_app.training.model import (
    CLASSIFIER,
    SoftmaxModel,
    digest_arrays,
    load_arrays,
    trainable_copy,
    tuned_backbone,
)
from fed3r_app.wire import TrainRequest, pack_arrays, unpack_arrays
from strategies import (
    TrainingRounds,
    make_optimizer,
    optimizer_state,
    restore_optimizer,
)

Named = dict[str, Tensor]

# The keys of the run config that a round's outcome depends on, besides the backbone.
RESUME_KEYS = (
    *("dataset", "partition", "alpha", "extract-dtype"),
    *("method", "finetune", "optimizer", "local-epochs", "batch-size", "lr"),
    *("weight-decay", "server-lr", "server-momentum", "temperature", "batch-norm"),
    *("augment", "clients-per-round", "fit-intercept", "normalize-classes", "seed"),
    "ridge-lambda",
)
# Larger ones lose what a closed form has: measured on digits (docs/fine-tuning.md).
_LR_AFTER_CLOSED_FORM = {"lp": 1e-3, "feat": 1e-5, "full": 1e-5}
_LR_AFTER_RANDOM = {"lp": 0.1, "full": 1e-3}
_MOMENTUM = 0.9  # of FedAvgM, as in the paper


@dataclass(eq=False)
class FineTuningPhase:
    """Rounds of training, evaluated and checkpointed.

    Parameters
    ----------
    context : RunContext
        The run.
    start : InitialClassifier
        Classifier and temperature.
    model : SoftmaxModel
        What is trained.
    rounds : TrainingRounds
        The optimiser, with the clients that train.
    settings : dict
        What must be the same in a run that is resumed.

    Attributes
    ----------
    metrics : dict
        Of the last evaluation, by name.
    is_consistent : bool
        False while the model changes: a signal may end the process then.
    """

    context: RunContext
    start: InitialClassifier
    model: SoftmaxModel
    rounds: TrainingRounds
    settings: dict[str, Setting]
    metrics: dict[str, float] = field(default_factory=dict)
    is_consistent: bool = True
    _trained: int = 0
    # Of the test images, after so many rounds.
    _features: tuple[int, Tensor | None] = (0, None)

    @classmethod
    def prepare(
        cls, context: RunContext, start: InitialClassifier, earlier: Checkpoint | None
    ) -> FineTuningPhase:
        """Return the phase, ready to begin or to be resumed from a checkpoint."""
        config = context.config
        # Which clients train does not depend on who joins or leaves meanwhile.
        clients = (earlier and earlier.clients) or context.registry.clients
        momentum = config.server_momentum
        optimizer = make_optimizer(
            config.optimizer,
            server_lr=config.server_lr,
            server_momentum=_MOMENTUM if momentum == "auto" else momentum,
            num_clients=len(clients),
        )
        rounds = TrainingRounds(
            optimizer,
            context.registry,
            clients,
            per_round=config.per_round,
            seed=config.seed,
            fixed=pack_arrays(start.layer) if config.finetune == "feat" else None,
        )
        settings = _training_fingerprint(context, len(clients))
        phase = cls(context, start, _make_model(context, start), rounds, settings)
        if earlier:
            phase._resume_from(earlier)
        return phase

    @property
    def clients(self) -> tuple[str, ...]:
        """Those that train, fixed when the fine-tuning begins."""
        return tuple(self.rounds.clients)

    def run(self) -> None:
        """Train the rounds that are left."""
        context, config = self.context, self.context.config
        request = context.request(self._request().pack())
        while self._trained < config.rounds:
            number = self._trained + 1
            admit_newcomers(context, only=self.clients)
            result = self.rounds.run(
                context.grid,
                number,
                self._arrays(),
                self._running(),
                request,
                config.round_timeout,
            )
            arrays = unpack_arrays(result.arrays)
            if result.running is not None:
                arrays |= unpack_arrays(result.running)
            self.is_consistent = False
            load_arrays(self.model, arrays)
            self.is_consistent = True
            self._trained = number
            add_training_costs(context, self.model, result)
            self._end_round(result.loss, result.clients)
            save_checkpoint(context.directory.checkpoint_path, self._checkpoint())

    def backbone(self) -> Backbone:
        """Return the backbone as it is now."""
        if not _moves_backbone(self.context):
            return self.context.backbone
        return tuned_backbone(self.context.backbone, self.backbone_arrays())

    def backbone_arrays(self) -> Named:
        """Return the backbone's trained arrays; none if it does not move."""
        if not _moves_backbone(self.context):
            return {}
        arrays: Named = dict(self.model.trainable("feat"))
        if self.context.config.batch_norm == "train":
            arrays |= self.model.running_statistics()
        return {name: value.detach().clone() for name, value in arrays.items()}

    def saved_model(self) -> SavedModel:
        """Return the model as it is now."""
        layer = self.model.classifier
        has_bias = CLASSIFIER + "bias" in self.start.layer
        rows = [layer.weight.detach().T]
        if has_bias:
            rows.append(layer.bias.detach()[None])
        W = torch.cat(rows).double().cpu()
        return self.context.saved_model(
            Classifier(W, self.start.present),
            replace(self.start.feature_map, intercept=has_bias),
            backbone_arrays=self.backbone_arrays(),
        )

    def test_features(self) -> Tensor | None:
        """Return the features of the test images under the backbone as it is."""
        context = self.context
        images = context.data.test_images
        if images is None or not _moves_backbone(context):
            return context.test_features
        rounds, features = self._features
        if rounds != self._trained or features is None:  # a probe asks once more
            features = extract_features(
                self.backbone(),
                images,
                np.arange(len(images)),
                device=context.device,
                dtype=context.config.extract_dtype,
            )
            self._features = (self._trained, features)
        return features

    def _request(self) -> TrainRequest:
        config, start = self.context.config, self.start
        fixed = digest_arrays(start.layer) if config.finetune == "feat" else ""
        return TrainRequest(
            lr=self._lr(),
            temperature=start.temperature,
            feature_map=start.feature_map,
            fixed_digest=fixed,
            bias=CLASSIFIER + "bias" in start.layer,
        )

    def _lr(self) -> float:
        config = self.context.config
        if config.lr != "auto":
            return config.lr
        random_start = config.method == "none"
        table = _LR_AFTER_RANDOM if random_start else _LR_AFTER_CLOSED_FORM
        return table[config.finetune]

    def _arrays(self) -> ArrayRecord:
        return pack_arrays(dict(self.model.trainable(self.context.config.finetune)))

    def _running(self) -> ArrayRecord | None:
        train_statistics = self.context.config.batch_norm == "train"
        if not (train_statistics and _moves_backbone(self.context)):
            return None
        return pack_arrays(self.model.running_statistics())

    def _end_round(self, loss: float, clients: int) -> None:
        """Write the round down; evaluate it where that is due."""
        config = self.context.config
        every = config.evaluation_interval(config.rounds)
        line: dict[str, object] = {"clients_trained": clients, "train_loss": loss}
        if self._trained == config.rounds or (every and self._trained % every == 0):
            self._evaluate()
            line |= {"accuracy": None, **self.metrics}
        self.context.recorder.end_round({"phase": "finetune", **line})

    def _evaluate(self) -> None:
        """Evaluate the model on the test images, where there are any."""
        model = self.saved_model()
        evaluation_set = self.context.evaluation_set(
            model.feature_map, self.test_features()
        )
        if evaluation_set is not None:
            self.metrics = evaluation_set.evaluate(model.classifier).values()

    def _checkpoint(self) -> Checkpoint:
        state = optimizer_state(self.rounds.optimizer)
        running = self._running()
        return Checkpoint(
            arrays=dict(self.model.trainable(self.context.config.finetune)),
            running=unpack_arrays(running) if running else {},
            optimizer={k: torch.from_numpy(v.copy()) for k, v in state.items()},
            settings=self.settings,
            numbers={
                "trained": self._trained,
                "temperature": self.start.temperature,
                **self.metrics,
            },
            progress=self.context.recorder.progress(),
            clients=self.clients,
        )

    def _resume_from(self, earlier: Checkpoint) -> None:
        check_settings(earlier.settings, self.settings)
        load_arrays(self.model, {**earlier.arrays, **earlier.running})
        state = {name: value.numpy() for name, value in earlier.optimizer.items()}
        restore_optimizer(self.rounds.optimizer, self._arrays(), state)
        self._trained = int(earlier.numbers["trained"] or 0)
        self.metrics = {
            name: float(value)
            for name, value in earlier.numbers.items()
            if name in METRICS and value is not None
        }


def _moves_backbone(context: RunContext) -> bool:
    return context.config.finetune != "lp"


def _make_model(context: RunContext, start: InitialClassifier) -> SoftmaxModel:
    backbone = trainable_copy(context.backbone) if _moves_backbone(context) else None
    weight, bias = (
        start.layer[CLASSIFIER + "weight"],
        start.layer.get(CLASSIFIER + "bias"),
    )
    return SoftmaxModel(backbone, weight, bias)


def _training_fingerprint(context: RunContext, num_clients: int) -> dict[str, Setting]:
    """Return what must not change between the parts of a run."""
    run_config = context.config.to_run_config()
    return {
        **{key: run_config[key] for key in RESUME_KEYS},
        "data-identity": context.data.identity,
        "labels": json.dumps(context.class_names, ensure_ascii=False),
        **context.backbone.spec.fingerprint(),
        "clients": num_clients,
    }
