"""The fine-tuning phase: Flower's optimisers on a softmax that starts well."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.core import FeatureMap
from fed3r_app.core.costs import trained_values, training_bytes, training_flops
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.runs.recorder import Recorder
from fed3r_app.runs.snapshots import (
    Checkpoint,
    Setting,
    check_settings,
    save_checkpoint,
)
from fed3r_app.server.context import RunContext
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
    ClientRegistry,
    TrainedRound,
    TrainingRounds,
    make_optimizer,
    optimizer_state,
    restore_optimizer,
)

Named = dict[str, Tensor]


# The keys of the run config that a round's outcome depends on.
RESUME_KEYS = (
    *("dataset", "partition", "alpha", "extract-dtype"),
    *("method", "finetune", "optimizer", "local-epochs", "batch-size", "lr"),
    *("weight-decay", "server-lr", "server-momentum", "temperature", "batch-norm"),
    *("augment", "clients-per-round", "fit-intercept", "normalize-classes", "seed"),
    "ridge-lambda",
)


_LR_AFTER_CLOSED_FORM = {"lp": 1e-3, "feat": 1e-5, "full": 1e-5}


_LR_AFTER_RANDOM = {"lp": 0.1, "full": 1e-3}


_MOMENTUM = 0.9  # of FedAvgM


@dataclass(frozen=True, eq=False)
class Start:
    """Where the fine-tuning starts.

    Parameters
    ----------
    classifier : dict
        Weight (C, d) and perhaps bias (C,).
    present : Tensor of shape (C,), bool
        Classes that may be predicted.
    feature_map : FeatureMap
        From backbone features to the classifier's input, without a ones column.
    temperature : float
        Of the softmax.
    """

    classifier: Named
    present: Tensor
    feature_map: FeatureMap
    temperature: float


class FineTuningPhase:
    """Rounds of training, evaluated and checkpointed.

    Parameters
    ----------
    context : RunContext
        The run.
    registry : ClientRegistry
        Its clients.
    start : Start
        Classifier and temperature.
    recorder : Recorder
        Where costs and metrics go.
    earlier : Checkpoint or None
        Where an earlier part of the run got to.

    Attributes
    ----------
    clients : tuple of str
        Those that train, fixed when the fine-tuning begins.
    is_consistent : bool
        False while the model changes: a signal may end the process then.
    """

    def __init__(
        self,
        context: RunContext,
        registry: ClientRegistry,
        start: Start,
        recorder: Recorder,
        earlier: Checkpoint | None = None,
    ) -> None:
        self._session = context
        self._start = start
        self._recorder = recorder
        self._model = self._make_model()
        # Who trains does not depend on who comes and goes meanwhile.
        self.clients = (earlier and earlier.clients) or registry.clients
        self._settings = self._training_fingerprint()
        config = context.config
        self._rounds = TrainingRounds(
            make_optimizer(
                config.optimizer,
                server_lr=config.server_lr,
                server_momentum=_MOMENTUM
                if config.server_momentum == "auto"
                else config.server_momentum,
                num_clients=len(self.clients),
            ),
            registry,
            self.clients,
            per_round=config.per_round,
            seed=config.seed,
            fixed=pack_arrays(start.classifier) if config.finetune == "feat" else None,
        )
        self.is_consistent = True
        self._trained = 0
        # Of the held-out images, after so many rounds.
        self._features: tuple[int, Tensor | None] = (0, None)
        self.accuracy: float | None = None
        if earlier:
            self._resume_from(earlier)

    def run(self, grid: Grid) -> None:
        """Train until the rounds are over."""
        config = self._session.config
        request = self._session.request(self._request().pack())
        while self._trained < config.rounds:
            number = self._trained + 1
            self._session.admit_newcomers(self._recorder, only=self.clients)
            result = self._rounds.run(
                grid,
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
            load_arrays(self._model, arrays)
            self.is_consistent = True
            self._trained = number
            self._add_costs(result)
            self._end_round(result.loss, result.clients)
            save_checkpoint(self._session.directory.checkpoint_path, self._checkpoint())

    def backbone(self) -> Backbone:
        """Return the backbone as it is now."""
        if not self._moves_backbone:
            return self._session.backbone
        return tuned_backbone(self._session.backbone, self.backbone_arrays())

    def backbone_arrays(self) -> Named:
        """Return the backbone's trained arrays; none if it does not move."""
        if not self._moves_backbone:
            return {}
        arrays: Named = dict(self._model.trainable("feat"))
        if self._session.config.batch_norm == "train":
            arrays |= self._model.running_statistics()
        return {name: value.detach().clone() for name, value in arrays.items()}

    def saved_model(self) -> SavedModel:
        """Return the model as it is now."""
        config, classifier = self._session.config, self._model.classifier
        has_bias = CLASSIFIER + "bias" in self._start.classifier
        rows = [classifier.weight.detach().T]
        if has_bias:
            rows.append(classifier.bias.detach()[None])
        return SavedModel(
            W=torch.cat(rows).double().cpu(),
            present=self._start.present,
            class_names=self._session.class_names,
            method=config.method,
            ridge_lambda=None,
            backbone=self._session.backbone.spec,
            feature_map=replace(self._start.feature_map, intercept=has_bias),
            backbone_arrays=self.backbone_arrays(),
        )

    def test_features(self) -> Tensor | None:
        """Return the features of the held-out images under the backbone as it is."""
        context = self._session
        if context.test_images is None or not self._moves_backbone:
            return context.test_features
        rounds, features = self._features
        if rounds != self._trained or features is None:  # a probe asks once more
            features = extract_features(
                self.backbone(),
                context.test_images,
                np.arange(len(context.test_images)),
                device=context.device,
                dtype=context.config.extract_dtype,
            )
            self._features = (self._trained, features)
        return features

    @property
    def _moves_backbone(self) -> bool:
        return self._session.config.finetune != "lp"

    def _make_model(self) -> SoftmaxModel:
        backbone = (
            trainable_copy(self._session.backbone) if self._moves_backbone else None
        )
        arrays = self._start.classifier
        weight, bias = arrays[CLASSIFIER + "weight"], arrays.get(CLASSIFIER + "bias")
        return SoftmaxModel(backbone, weight, bias)

    def _request(self) -> TrainRequest:
        config, start = self._session.config, self._start
        fixed = digest_arrays(start.classifier) if config.finetune == "feat" else ""
        return TrainRequest(
            lr=self._lr(),
            temperature=start.temperature,
            feature_map=start.feature_map,
            fixed_digest=fixed,
            bias=CLASSIFIER + "bias" in start.classifier,
        )

    def _lr(self) -> float:
        config = self._session.config
        if config.lr != "auto":
            return config.lr
        random_start = config.method == "none"
        table = _LR_AFTER_RANDOM if random_start else _LR_AFTER_CLOSED_FORM
        return table[config.finetune]

    def _arrays(self) -> ArrayRecord:
        return pack_arrays(dict(self._model.trainable(self._session.config.finetune)))

    def _running(self) -> ArrayRecord | None:
        follows = self._moves_backbone and self._session.config.batch_norm == "train"
        return pack_arrays(self._model.running_statistics()) if follows else None

    def _add_costs(self, result: TrainedRound) -> None:
        config, model = self._session.config, self._model
        c = sum(value.numel() for value in model.trainable("lp").values())
        b = sum(value.numel() for value in model.trainable("feat").values())
        values = trained_values(config.finetune, b, c, config.optimizer == "scaffold")
        flops = training_flops(
            config.finetune,
            result.num_samples,
            config.local_epochs,
            self._session.forward_flops,
            c,
        )
        one_way = training_bytes(values, result.clients, rounds=1)
        self._recorder.add_costs(
            up=result.upload_bytes,
            down=result.download_bytes,
            paper_up=one_way,
            paper_down=one_way,
            flops=flops,
        )

    def _end_round(self, loss: float, clients: int) -> None:
        """Write the round down; evaluate it where that is due."""
        rounds = self._session.config.rounds
        every = self._session.config.evaluation_interval(rounds)
        line: dict[str, object] = {"clients_trained": clients, "train_loss": loss}
        if self._trained == rounds or (every and self._trained % every == 0):
            line["accuracy"] = self._evaluate()
        self._recorder.end_round({"phase": "finetune", **line})

    def _evaluate(self) -> float | None:
        """Return the accuracy of the model as it is now."""
        model = self.saved_model()
        evaluation_set = self._session.evaluation_set(
            model.feature_map, self.test_features()
        )
        if evaluation_set is None:
            return None
        self.accuracy = evaluation_set.accuracy(model.W, model.present)
        return self.accuracy

    def _training_fingerprint(self) -> dict[str, Setting]:
        """Return what must not change between the parts of a run."""
        run_config = self._session.config.to_run_config()
        return {
            **{key: run_config[key] for key in RESUME_KEYS},
            "data-identity": self._session.data_identity,
            "labels": json.dumps(self._session.class_names, ensure_ascii=False),
            **self._session.backbone.spec.fingerprint(),
            "clients": len(self.clients),
        }

    def _checkpoint(self) -> Checkpoint:
        state = optimizer_state(self._rounds.optimizer)
        running = self._running()
        return Checkpoint(
            arrays=dict(self._model.trainable(self._session.config.finetune)),
            running=unpack_arrays(running) if running else {},
            optimizer={k: torch.from_numpy(v.copy()) for k, v in state.items()},
            settings=self._settings,
            numbers={
                "trained": self._trained,
                "temperature": self._start.temperature,
                "accuracy": self.accuracy,
            },
            progress=self._recorder.progress(),
            clients=self.clients,
        )

    def _resume_from(self, earlier: Checkpoint) -> None:
        check_settings(earlier.settings, self._settings)
        load_arrays(self._model, {**earlier.arrays, **earlier.running})
        state = {name: value.numpy() for name, value in earlier.optimizer.items()}
        restore_optimizer(self._rounds.optimizer, self._arrays(), state)
        self._trained = int(earlier.numbers["trained"] or 0)
        self.accuracy = earlier.numbers["accuracy"]
