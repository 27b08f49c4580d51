"""The fine-tuning phase: Flower's optimisers on a softmax that starts well."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fed3r_app.core import METRICS, Classifier
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
    TrainedRound,
    TrainingRounds,
    make_optimizer,
    optimizer_state,
    restore_optimizer,
)

Named = dict[str, Tensor]

# The keys of the run config that a round's outcome depends on, besides the backbone.
RESUME_KEYS = (
    *("dataset", "test-share", "partition", "alpha", "extract-dtype"),
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
    start : InitialClassifier
        Classifier and temperature.
    model : SoftmaxModel
        What is trained.
    rounds : TrainingRounds
        The optimiser, with the clients that train.

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
        config, layer = context.config, start.layer
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
            fixed=pack_arrays(layer) if config.finetune == "feat" else None,
            # Elsewhere the statistics have told who sees otherwise.
            parity=context.parity if config.method == "none" else None,
        )
        backbone = trainable_copy(context.backbone) if config.finetune != "lp" else None
        weight, bias = layer[CLASSIFIER + "weight"], layer.get(CLASSIFIER + "bias")
        model = SoftmaxModel(backbone, weight, bias)
        phase = cls(context, start, model, rounds)
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
        fixed = digest_arrays(self.start.layer) if config.finetune == "feat" else ""
        request = TrainRequest(
            lr=self._lr(),
            temperature=self.start.temperature,
            feature_map=self.start.feature_map,
            fixed_digest=fixed,
            bias=self.start.has_bias,
        )
        train_config = context.request(request.pack())
        while self._trained < config.rounds:
            number, running = self._trained + 1, self._running()
            admit_newcomers(context, only=self.clients)
            result = self.rounds.run(
                context.grid,
                number,
                pack_arrays(self._arrays()),
                None if running is None else pack_arrays(running),
                train_config,
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
            self._end_round(result)
            save_checkpoint(context.directory.checkpoint_path, self._checkpoint())

    def backbone_arrays(self) -> Named:
        """Return the backbone's trained arrays; none if it does not move."""
        if not self._moves_backbone:
            return {}
        arrays = dict(self.model.trainable("feat")) | (self._running() or {})
        return {name: value.detach().clone() for name, value in arrays.items()}

    def saved_model(self) -> SavedModel:
        """Return the model as it is now."""
        layer, has_bias = self.model.classifier, self.start.has_bias
        rows = [layer.weight.T, layer.bias[None]] if has_bias else [layer.weight.T]
        return self.context.saved_model(
            Classifier(torch.cat(rows).detach().double().cpu(), self.start.present),
            replace(self.start.feature_map, intercept=has_bias),
            backbone_arrays=self.backbone_arrays(),
        )

    def test_features(self) -> Tensor | None:
        """Return the features of the test images under the backbone as it is."""
        context = self.context
        images = context.data.test_images
        if images is None or not self._moves_backbone:
            return context.test_features
        rounds, features = self._features
        if rounds != self._trained or features is None:  # a probe asks once more
            features = extract_features(
                tuned_backbone(context.backbone, self.backbone_arrays()),
                images,
                np.arange(len(images)),
                device=context.device,
                dtype=context.config.extract_dtype,
                unreadable=context.data.unreadable,
            )
            self._features = (self._trained, features)
        return features

    @property
    def _moves_backbone(self) -> bool:
        return self.context.config.finetune != "lp"

    def _lr(self) -> float:
        config = self.context.config
        if config.lr != "auto":
            return config.lr
        random_start = config.method == "none"
        table = _LR_AFTER_RANDOM if random_start else _LR_AFTER_CLOSED_FORM
        return table[config.finetune]

    def _arrays(self) -> Named:
        return dict(self.model.trainable(self.context.config.finetune))

    def _running(self) -> Named | None:
        """Return the running statistics, where the clients' batches move them."""
        moves = self.context.config.batch_norm == "train" and self._moves_backbone
        return self.model.running_statistics() if moves else None

    def _end_round(self, result: TrainedRound) -> None:
        """Write the round down; evaluate it where that is due and there are images."""
        config = self.context.config
        every = config.evaluation_interval(config.rounds)
        line: dict[str, object] = {"clients_trained": result.clients}
        line["train_loss"] = result.loss
        if self._trained == config.rounds or (every and self._trained % every == 0):
            model, features = self.saved_model(), self.test_features()
            test = self.context.evaluation_set(model.feature_map, features)
            if test is not None:
                self.metrics = test.evaluate(model.classifier).values()
            line |= {"accuracy": None, **self.metrics}
        self.context.recorder.end_round({"phase": "finetune", **line})

    def _checkpoint(self) -> Checkpoint:
        state = optimizer_state(self.rounds.optimizer)
        return Checkpoint(
            arrays=self._arrays(),
            running=self._running() or {},
            optimizer={k: torch.from_numpy(v.copy()) for k, v in state.items()},
            settings=self._fingerprint(),
            numbers={
                "trained": self._trained,
                "temperature": self.start.temperature,
                **self.metrics,
            },
            progress=self.context.recorder.progress(),
            clients=self.clients,
        )

    def _resume_from(self, earlier: Checkpoint) -> None:
        check_settings(earlier.settings, self._fingerprint())
        load_arrays(self.model, {**earlier.arrays, **earlier.running})
        state = {name: value.numpy() for name, value in earlier.optimizer.items()}
        restore_optimizer(self.rounds.optimizer, pack_arrays(self._arrays()), state)
        self._trained = int(earlier.numbers["trained"] or 0)
        self.metrics = {
            name: float(value)
            for name, value in earlier.numbers.items()
            if name in METRICS and value is not None
        }

    def _fingerprint(self) -> dict[str, Setting]:
        """Return what must not change between the parts of a run."""
        context = self.context
        run_config = context.config.to_run_config()
        return {
            **{key: run_config[key] for key in RESUME_KEYS},
            "data-identity": context.data.identity(context.backbone.spec.recipe),
            "labels": json.dumps(context.class_names, ensure_ascii=False),
            **context.backbone.spec.fingerprint(),
            "clients": len(self.clients),
        }
