"""A run from its first exchange to its summary."""

from __future__ import annotations

import gc
import json

from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.config import Config
from fed3r_app.core import FeatureMap
from fed3r_app.errors import RunError
from fed3r_app.runs.curves import import_matplotlib
from fed3r_app.runs.model_file import SavedModel, save_model
from fed3r_app.runs.recorder import Recorder
from fed3r_app.runs.snapshots import Checkpoint, Snapshot, load_checkpoint
from fed3r_app.runs.state import RunState
from fed3r_app.server.client_evaluation import accuracy_at_clients
from fed3r_app.server.context import RunContext
from fed3r_app.server.factory import choose_feature_map
from fed3r_app.server.fine_tuning_phase import FineTuningPhase, Start
from fed3r_app.server.forget_replace import revise
from fed3r_app.server.initial_classifier import (
    choose_temperature,
    closed_form_start,
    random_start,
)
from fed3r_app.server.quality_probe import probe
from fed3r_app.server.statistics_phase import Solution, StatisticsPhase, absent_classes
from strategies import ClientRegistry


def run(grid: Grid, config: Config) -> None:
    """Meet the clients, make a classifier with them, write down what came of it."""
    context = RunContext(config)
    with context.directory.locked():
        if config.forget or config.replace:
            revise(grid, context)
        else:
            _Run(grid, context).run()


class _Run:
    """The phases of one run, in order."""

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._session = context
        self._config = context.config
        self._state = RunState(context.directory, self._config.keep_contributions)
        self._snapshot, self._checkpoint = self._load_earlier()
        auto_sigma = (
            self._config.method == "fed3r-rf" and self._config.rf_sigma == "auto"
        )
        tuned = self._checkpoint.clients if self._checkpoint else ()
        counted = self._snapshot.contributions if self._snapshot else {}
        import_matplotlib()  # the clients are starting: a second less at the end
        self._roster: ClientRegistry = context.discover_clients(
            grid,
            with_moments=auto_sigma and not self._snapshot,
            earlier_classes=self._earlier_classes(),
            forgotten=self._state.forgotten,
            counted={*counted, *tuned},
            only=tuned,
        )
        everybody = self._state.expected.union(self._roster.clients, tuned)
        self._num_clients = len(everybody)
        # Unless sums were lost: who is known to have been in them is asked again.
        begun = self._snapshot is not None and self._checkpoint is not None
        self._is_final = begun and self._state.expected <= counted.keys()
        self._recorder = self._make_recorder()
        self._outcome: dict[str, object] = {
            "method": self._config.method,
            "dataset": self._config.dataset,
            "status": "complete",
            "clients": self._num_clients,
            "clients_counted": None,
            "ridge_lambda": None,
            "num_classes": context.num_classes,
        }

    def run(self) -> None:
        """Run the phases that the config asks for."""
        if self._config.finetune == "none":
            self._solve()
        else:
            start = self._start()
            self._free_statistics()
            self._fine_tune(start)
        self._recorder.finish(self._outcome)

    def _free_statistics(self) -> None:
        """Free the statistics, which may be larger than all that trains."""
        self._snapshot = None
        gc.collect()  # the strategy and what it calls refer to each other

    def _load_earlier(self) -> tuple[Snapshot | None, Checkpoint | None]:
        """Return what earlier parts of the run have left, if it is to be resumed."""
        directory, config = self._session.directory, self._config
        if not config.resume:
            return None, None
        tuned = directory.checkpoint_path.exists()
        if tuned and config.finetune == "none":
            raise ValueError(
                "finetune must not be 'none' to go on with a run that has been "
                f"fine-tuned, got 'none': the model in {directory.path} would be lost."
            )
        return (
            self._state.load() if config.method != "none" else None,
            load_checkpoint(directory.checkpoint_path) if tuned else None,
        )

    def _earlier_classes(self) -> tuple[str, ...]:
        """Return the classes that an earlier part of the run knew."""
        if self._snapshot:
            return self._snapshot.class_names
        settings = self._checkpoint.settings if self._checkpoint else {}
        return tuple(json.loads(str(settings.get("labels", "[]"))))

    def _make_recorder(self) -> Recorder:
        registry, earlier = self._roster, self._checkpoint or self._snapshot
        progress = earlier.progress if earlier else {}
        recorder = Recorder(self._session.directory, self._num_clients, progress)
        recorder.add_costs(up=registry.upload_bytes, down=registry.download_bytes)
        return recorder

    def _solve(self) -> Solution:
        """Return the closed-form classifier, saved; raise if too few are in it."""
        context, earlier = self._session, self._snapshot
        feature_map = choose_feature_map(context, self._roster, earlier)
        phase = StatisticsPhase(
            context,
            self._roster,
            feature_map,
            self._recorder,
            self._state,
            earlier,
            final=self._is_final,
        )
        solution, shortfall = phase.run(self._grid), phase.shortfall()
        if solution:
            self._note_solution(phase, solution)
        if solution and not self._checkpoint:  # else a fine-tuned model is there
            save_model(context.directory.model_path, _model(context, solution))
        if solution and shortfall:
            self._recorder.finish(self._outcome)
        if shortfall:
            raise RunError(shortfall)
        assert solution is not None
        return solution

    def _note_solution(self, phase: StatisticsPhase, solution: Solution) -> None:
        """Put what the solution is into the summary."""
        sampler, stats, names = (
            phase.sampler,
            solution.statistics,
            self._session.class_names,
        )
        self._outcome |= {
            "status": "partial" if phase.missing else "complete",
            "accuracy": solution.accuracy,
            "clients": len(sampler.counted) + len(phase.missing),
            "clients_counted": len(sampler.counted),
            "missing_clients": list(phase.missing),
            "refused": dict(self._roster.refused),
            "num_samples": stats.n,
            "absent_classes": absent_classes(names, stats),
            "feature_dim": solution.feature_map.dim,
            "ridge_lambda": solution.ridge_lambda,
        }
        if phase.release:
            self._outcome["differential_privacy"] = phase.release.summary()
        if solution.feature_map.rf_dim:
            self._outcome["rf_sigma"] = solution.feature_map.rf_sigma
        self._evaluate_at_clients(solution.classifier, solution.feature_map)

    def _evaluate_at_clients(
        self,
        classifier: tuple[Tensor, Tensor],
        feature_map: FeatureMap,
        backbone: dict[str, Tensor] | None = None,
    ) -> None:
        """Put into the summary what a model gets right on the clients' images."""
        result = accuracy_at_clients(
            self._session,
            self._grid,
            self._roster,
            self._recorder,
            classifier,
            feature_map,
            backbone,
        )
        if result is None:
            return
        self._outcome["client_accuracy"] = result.accuracy
        if result.evaluation_set:
            self._outcome["client_test_images"] = result.num_images
            if self._outcome["accuracy"] is None:  # the server has no test images
                self._outcome["accuracy"] = result.accuracy

    def _start(self) -> Start:
        """Return where the fine-tuning starts."""
        if self._config.method == "none":
            return random_start(self._session)
        solution = self._solve()
        if self._config.temperature != "auto":
            return closed_form_start(solution, self._config.temperature)
        if self._checkpoint:
            temperature = float(self._checkpoint.numbers["temperature"] or 1)
        else:
            temperature = choose_temperature(
                self._session, self._grid, self._roster, solution, self._recorder
            )
        return closed_form_start(solution, temperature)

    def _fine_tune(self, start: Start) -> None:
        """Fine-tune, and probe the features where asked to; save the last model."""
        context, config = self._session, self._config
        tuning = FineTuningPhase(
            context, self._roster, start, self._recorder, self._checkpoint
        )
        model_path = context.directory.model_path
        try:
            tuning.run(self._grid)
        finally:  # a round that failed leaves the model before it
            if tuning.is_consistent:
                save_model(model_path, tuning.saved_model())
        self._outcome |= {
            "finetune": config.finetune,
            "optimizer": config.optimizer,
            "temperature": start.temperature,
            "closed_form_accuracy": self._outcome.get("accuracy"),
            "accuracy": tuning.accuracy,
        }
        model = tuning.saved_model()
        self._outcome.pop("client_accuracy", None)  # it is of the start
        self._evaluate_at_clients(
            (model.W, model.present), model.feature_map, model.backbone_arrays
        )
        if config.probe or config.refit:
            probed = probe(context, self._grid, self._roster, tuning, self._recorder)
            self._outcome["probe_accuracy"] = probed.accuracy
            if config.refit:
                save_model(model_path, probed.model(tuning.saved_model()))


def _model(context: RunContext, solution: Solution) -> SavedModel:
    W, present = solution.classifier
    config = context.config
    return SavedModel(
        W=W,
        present=present,
        class_names=context.class_names,
        method=config.method,
        ridge_lambda=solution.ridge_lambda,
        backbone=context.backbone.spec,
        feature_map=solution.feature_map,
    )
