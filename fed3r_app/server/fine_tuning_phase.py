"""The fine-tuning phase: Flower's optimisers on a softmax that starts well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from fed3r_app.console.progress import Progress
from fed3r_app.core import METRICS, Classifier, Metrics
from fed3r_app.data import dataset_traits
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.weights import digest_arrays
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
from fed3r_app.server.guard import Guard
from fed3r_app.server.initial_classifier import InitialClassifier, closed_form_start
from fed3r_app.server.learning_rate import learning_rate
from fed3r_app.server.quality_probe import RefitRule, TooFewClients, probe
from fed3r_app.training.model import (
    BIAS,
    CLASSIFIER,
    SoftmaxModel,
    load_arrays,
    trainable_copy,
    tuned_backbone,
)
from fed3r_app.wire import TrainRequest, pack_arrays, unpack_arrays
from strategies import (
    DivergedError,
    TrainedRound,
    TrainingRounds,
    make_optimizer,
    move_model,
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
    *("ridge-lambda", "clip-norm", "local-prior", "refit-every"),
)
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
    refit_rule : RefitRule or None
        What a refit on the way must be better than; None takes any.

    Attributes
    ----------
    metrics : dict
        Of the last evaluation, by name.
    guard : Guard or None
        Ends the phase when the model is being destroyed.
    trained : int
        Rounds that the model has been trained.
    stopped : str
        Why it did; "" otherwise.
    is_of_v0_1 : bool
        Whether it began with version 0.1, whose learning rates were others.
    is_consistent : bool
        False while the model changes: a signal may end the process then.
    """

    context: RunContext
    start: InitialClassifier
    model: SoftmaxModel
    rounds: TrainingRounds
    guard: Guard | None = None
    refit_rule: RefitRule | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    counts: Metrics | None = None  # what they are of, if evaluated in this part
    trained: int = 0
    stopped: str = ""
    is_of_v0_1: bool = False
    is_consistent: bool = True
    # Of the test images, after so many rounds.
    _features: tuple[int, Tensor | None] = (0, None)

    @classmethod
    def prepare(
        cls,
        context: RunContext,
        start: InitialClassifier,
        earlier: Checkpoint | None,
        refit_rule: RefitRule | None = None,
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
        weight, bias = layer[CLASSIFIER + "weight"], layer.get(BIAS)
        model = SoftmaxModel(backbone, weight, bias)
        may_augment = (
            config.moves_backbone and dataset_traits(config.dataset).may_mirror
        )
        if config.augment == "auto" and may_augment and not config.augments:
            log(INFO, "Trains on images as they are; augment=true crops and mirrors")
        guard = None
        if config.guard and start.fit:
            guard = Guard(start.fit.left_out, (0, model.copies()))
        phase = cls(context, start, model, rounds, guard, refit_rule)
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
        every = config.refit_every
        with Progress("rounds trained") as progress:
            while self.trained < config.rounds and not self.stopped:
                progress(self.trained, config.rounds)
                admit_newcomers(context, only=self.clients)
                # Not after a round: a run resumed for more of them has one due.
                if every and self.trained and self.trained % every == 0:
                    self._refit()
                self._train()
                save_checkpoint(context.directory.checkpoint_path, self._checkpoint())
            progress(self.trained, config.rounds)

    def _train(self) -> None:
        """Train a round, and take its outcome; one that diverges may be the last."""
        try:
            result = self._train_round()
        except DivergedError as error:
            if self.guard is None:
                raise
            self._stop(str(error))
        else:
            add_training_costs(self.context, self.model, result)
            self._take(result)

    def _train_round(self) -> TrainedRound:
        context, running = self.context, self._running()
        return self.rounds.run(
            context.grid,
            self.trained + 1,
            pack_arrays(self._arrays()),
            None if running is None else pack_arrays(running),
            context.request(self._request().pack()),
            context.config.round_timeout,
        )

    def _request(self) -> TrainRequest:
        is_fixed = self.context.config.finetune == "feat"
        return TrainRequest(
            lr=self._lr(),
            temperature=self.start.temperature,
            feature_map=self.start.feature_map,
            fixed_digest=digest_arrays(self._layer()) if is_fixed else "",
            bias=self.start.has_bias,
            report_fit=self.guard is not None,
        )

    def _take(self, result: TrainedRound) -> None:
        """Take the outcome of a round, unless the clients find that it must end."""
        model = self._arrays() | self._layer() | (self._running() or {})
        if self.guard:
            reason = self.guard.ends(result.received, self.trained, model)
            if reason:
                self._stop(reason)
                return
        arrays = unpack_arrays(result.arrays)
        if result.running is not None:
            arrays |= unpack_arrays(result.running)
        self._load(arrays)
        self.trained += 1
        self._end_round(result)

    def _stop(self, reason: str) -> None:
        """End the training at the last good model."""
        assert self.guard
        self.stopped = reason
        self.trained, arrays = self.guard.last_good
        self._load(arrays)
        said = "Fine-tuning ends with the model of round %d: %s. Is lr = %g too high?"
        log(WARNING, said, self.trained, reason, self._lr())
        self.evaluate()

    def _refit(self) -> None:
        """Put Fed3R's classifier of the features as they are in the classifier's place.

        Not if cross-validation finds it worse than the start.
        """
        context, arrays = self.context, self.backbone_arrays()
        try:
            solution = probe(context, self.clients, arrays, self.test_features())
            objection = self.refit_rule.objection(solution) if self.refit_rule else None
        except TooFewClients as error:
            objection = str(error)
        if objection:
            log(WARNING, "No refit after round %d: %s", self.trained, objection)
            return
        given = context.config.temperature
        measure = given == "auto"
        start = closed_form_start(context, solution, given, arrays, measure=measure)
        layer = dict(start.layer)
        if self.start.has_bias:  # ridge has none, but what trains has one
            layer.setdefault(BIAS, torch.zeros(context.num_classes))
        self.start = replace(start, layer=layer, fit=self.start.fit)
        self._load(layer)
        move_model(self.rounds.optimizer, pack_arrays(self._arrays()))
        if context.config.finetune == "feat":
            self.rounds.fix(pack_arrays(self._layer()))

    def _load(self, arrays: Mapping[str, Tensor]) -> None:
        self.is_consistent = False
        load_arrays(self.model, arrays)
        self.is_consistent = True

    def backbone_arrays(self) -> Named:
        """Return the backbone's trained arrays; none if it does not move."""
        if not self.context.config.moves_backbone:
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
        if images is None or not context.config.moves_backbone:
            return context.test_features
        rounds, features = self._features
        if rounds != self.trained or features is None:  # a probe asks once more
            features = extract_features(
                tuned_backbone(context.backbone, self.backbone_arrays()),
                images,
                np.arange(len(images)),
                device=context.device,
                dtype=context.config.extract_dtype,
                unreadable=context.data.unreadable,
            )
            self._features = (self.trained, features)
        return features

    def _lr(self) -> float:
        return learning_rate(self.context.config, is_of_v0_1=self.is_of_v0_1)

    def _arrays(self) -> Named:
        return dict(self.model.trainable(self.context.config.finetune))

    def _layer(self) -> Named:
        """Return the classifier."""
        return dict(self.model.trainable("lp"))

    def _running(self) -> Named | None:
        """Return the running statistics, where the clients' batches move them."""
        moves = (
            self.context.config.batch_norm == "train"
            and self.context.config.moves_backbone
        )
        return self.model.running_statistics() if moves else None

    def _end_round(self, result: TrainedRound) -> None:
        """Write the round down; evaluate it where that is due and there are images."""
        config = self.context.config
        every = config.evaluation_interval(config.rounds)
        line: dict[str, object] = {"phase": "finetune"}
        line |= {"clients_trained": result.clients, "train_loss": result.loss}
        is_due = self.trained == config.rounds or (every and self.trained % every == 0)
        if is_due:
            self.evaluate()
            line |= {"accuracy": None, **self.metrics}
        self.context.recorder.end_round(line, log_it=bool(is_due))

    def evaluate(self) -> None:
        """Evaluate the model as it is on the test images, where there are any."""
        model, features = self.saved_model(), self.test_features()
        test = self.context.evaluation_set(model.feature_map, features)
        self.counts = test.evaluate(model.classifier) if test else None
        self.metrics = self.counts.values() if self.counts else {}

    def _checkpoint(self) -> Checkpoint:
        state = optimizer_state(self.rounds.optimizer)
        return Checkpoint(
            arrays=self._arrays() | self._layer(),  # a refit moves what feat fixes
            running=self._running() or {},
            optimizer={k: torch.from_numpy(v.copy()) for k, v in state.items()},
            settings=self._fingerprint(),
            numbers={
                "trained": self.trained,
                "stopped": int(bool(self.stopped)),
                "bad_rounds": self.guard.bad_rounds if self.guard else 0,
                "of_v0_1": int(self.is_of_v0_1),
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
        if self.context.config.finetune == "feat":
            self.rounds.fix(pack_arrays(self._layer()))
        self.is_of_v0_1 = bool(earlier.numbers.get("of_v0_1", 1))
        if self.guard:
            self.guard.bad_rounds = int(earlier.numbers.get("bad_rounds") or 0)
        if earlier.numbers.get("stopped"):
            self.stopped = "it was ended before"
        self.trained = int(earlier.numbers["trained"] or 0)
        known = {k: v for k, v in earlier.numbers.items() if v is not None}
        self.metrics = {k: float(v) for k, v in known.items() if k in METRICS}

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
