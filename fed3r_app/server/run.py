"""A run from its first exchange to its summary: the phases, in order."""

from __future__ import annotations

import gc
import json
from contextlib import nullcontext
from functools import partial
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.config import Config
from fed3r_app.core import Metrics
from fed3r_app.core.names import METHODS
from fed3r_app.errors import RunError, RunStopped
from fed3r_app.files import private_files
from fed3r_app.runs.curves import import_matplotlib
from fed3r_app.runs.ledger import RESUMED, LedgerEntry
from fed3r_app.runs.model_file import SavedModel, save_model
from fed3r_app.runs.provenance import earlier_version, recorded_part
from fed3r_app.runs.recorder import Recorder
from fed3r_app.runs.snapshots import Checkpoint, Snapshot, load_checkpoint
from fed3r_app.runs.trackers import tracking
from fed3r_app.server.client_evaluation import (
    evaluate_at_clients,
    evaluation_values,
)
from fed3r_app.server.context import RunContext
from fed3r_app.server.discovery_phase import admit_newcomers, discover_clients
from fed3r_app.server.final_model import Start, choose_model
from fed3r_app.server.fine_tuning_phase import FineTuningPhase
from fed3r_app.server.forget_replace import forget_or_replace
from fed3r_app.server.initial_classifier import initial_classifier
from fed3r_app.server.statistics_phase import Solution, StatisticsPhase, absent_classes
from fed3r_app.wire.versions import CODE_VERSION
from fed3r_app.words import plural, run_again
from strategies import Traffic
from strategies.stopping import Stopped


def run(grid: Grid, config: Config) -> None:
    """Find the clients, make a classifier with them, and write down the outcome.

    What is made of nodes' own images is for the owner of its files alone.
    """
    with private_files() if config.is_local else nullcontext():
        _run(grid, config)


def _run(grid: Grid, config: Config) -> None:
    context = RunContext.open(grid, config)
    with context.directory.locked():
        _record_other_version(context)
        if config.forget or config.replace:
            forget_or_replace(context)
            return
        run, directory = _Run(context), context.directory
        settings = config.to_run_config()
        try:
            with (
                recorded_part(directory, str(context.device), config.seed),
                tracking(config.tracker, directory, settings) as context.tracker,
            ):
                context.prepare()
                run.run()
        except Stopped:
            raise RunStopped(run.what_is_saved()) from None


def _record_other_version(context: RunContext) -> None:
    """Say so, in the ledger and the log, if another version began a resumed run."""
    earlier = earlier_version(context.directory) if context.config.resume else ""
    if earlier in ("", CODE_VERSION):
        return
    reason = f"by fed3r {CODE_VERSION}, after fed3r {earlier}"
    context.state.ledger.append(LedgerEntry("", RESUMED, reason=reason))
    log(WARNING, "This run is resumed %s.", reason)


class _Run:
    """One run. Each phase leaves its result for the next; some runs skip some."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._config = context.config
        self._snapshot: Snapshot | None = None
        self._checkpoint: Checkpoint | None = None
        self._statistics: StatisticsPhase | None = None
        self._solution: Solution | None = None
        self._model: SavedModel | None = None  # not yet evaluated at the clients
        self._tuning: FineTuningPhase | None = None
        self._start: Start | None = None  # of the fine-tuning, in closed form
        self._counts: Metrics | None = None  # of the model, on the test images
        self._outcome: dict[str, object] = {}

    def run(self) -> None:
        """Run the phases."""
        for phase in (
            self._load_earlier,
            self._discover,
            self._collect,
            self._solve,
            self._evaluate,
            self._check_coverage,
            self._fine_tune,
            self._choose_model,
            self._evaluate,
            self._finish,
        ):
            phase()

    def what_is_saved(self) -> str:
        """Return what a run that was stopped has saved, and how to resume it."""
        directory = self._context.directory
        saved = "nothing yet"
        if self._statistics and self._statistics.journal.is_saved:
            counted = plural(len(self._statistics.sampler.counted), "client")
            saved = f"the statistics of {counted}"
        elif self._tuning:
            saved = f"{plural(self._tuning.trained, 'round')} of fine-tuning"
        return (
            f"The run was stopped. Saved in {directory.path}: {saved}. To resume it, "
            f"{run_again(directory.path.name)}."
        )

    def _load_earlier(self) -> None:
        """Load what earlier parts of the run have left, if it is resumed."""
        directory, config = self._context.directory, self._config
        if not config.resume:
            return
        tuned = directory.checkpoint_path.exists()
        if tuned and config.finetune == "none":
            raise ValueError(
                "finetune must not be 'none' to resume a run that has been fine-tuned, "
                f"got 'none': the model in {directory.path} would be lost."
            )
        if config.method != "none":
            self._snapshot = self._context.state.load()
        if tuned:
            self._checkpoint = load_checkpoint(directory.checkpoint_path)

    def _discover(self) -> None:
        """Wait for the clients, and begin to record."""
        context, config = self._context, self._config
        method = METHODS.get(config.method)
        wants_sigma = bool(method and method.random_features)
        tuned = self._checkpoint.clients if self._checkpoint else ()
        counted = self._snapshot.contributions if self._snapshot else {}
        import_matplotlib()  # the clients are starting: a second less at the end
        discover_clients(
            context,
            with_moments=wants_sigma
            and config.rf_sigma == "auto"
            and not self._snapshot,
            earlier_classes=self._earlier_classes(),
            counted={*counted, *tuned},
            only=tuned,
        )
        clients = context.state.expected.union(context.registry.clients, tuned)
        context.directory.write_clients(clients, context.registry.versions)
        earlier = self._checkpoint or self._snapshot
        context.recorder = Recorder(
            context.directory,
            len(clients),
            earlier.progress if earlier else {},
            context.tracker,
        )
        traffic = context.registry.traffic
        context.recorder.add_costs(up=traffic.up, down=traffic.down)
        self._outcome = {
            "method": config.method,
            "dataset": config.dataset,
            "status": "complete",
            "clients": len(clients),
            "clients_counted": None,
            "ridge_lambda": None,
            "num_classes": context.num_classes,
        }

    def _earlier_classes(self) -> tuple[str, ...]:
        """Return the classes that an earlier part of the run knew."""
        if self._snapshot:
            return self._snapshot.class_names
        settings = self._checkpoint.settings if self._checkpoint else {}
        return tuple(json.loads(str(settings.get("labels", "[]"))))

    def _collect(self) -> None:
        """Add up the clients' statistics."""
        if self._config.method == "none":
            return
        counted = self._snapshot.contributions if self._snapshot else {}
        # A fine-tuning that has begun keeps its start. Unless statistics were lost:
        # clients that are known to have been in them are asked again.
        begun = self._snapshot is not None and self._checkpoint is not None
        final = begun and self._context.state.expected <= counted.keys()
        phase = StatisticsPhase.prepare(self._context, self._snapshot, final=final)
        self._statistics = phase
        phase.collect()

    def _solve(self) -> None:
        """Solve the statistics, and save the classifier."""
        phase, context = self._statistics, self._context
        solution = self._solution = phase.solve() if phase else None
        if not phase or not solution:
            return
        stats = solution.statistics
        self._outcome |= {
            "status": "partial" if phase.missing else "complete",
            "accuracy": None,
            **_measured(solution.metrics),
            "clients": len(phase.sampler.counted) + len(phase.missing),
            "clients_counted": len(phase.sampler.counted),
            "missing_clients": list(phase.missing),
            "refused": dict(context.registry.refused),
            "num_samples": stats.n,
            "absent_classes": absent_classes(context.class_names, stats),
            **context.state.image_counts(),
            "unreadable_test_images": context.data.num_unreadable,
            "feature_dim": solution.feature_map.dim,
            "ridge_lambda": solution.ridge_lambda,
        }
        if noise := phase.strategy.accumulator.noise:
            self._outcome["differential_privacy"] = noise.summary()
        if solution.heads:
            self._outcome["heads"] = solution.heads
        if solution.feature_map.rf_dim:
            self._outcome["rf_sigma"] = solution.feature_map.rf_sigma
        self._model, self._counts = solution.model(context), solution.metrics
        if not self._checkpoint:  # else a fine-tuned model is there
            # A run may be resumed with another method, which later commands go by.
            context.directory.change_config(method=self._config.method)
            save_model(context.directory.model_path, self._model)

    def _evaluate(self) -> None:
        """Evaluate a new model on the clients' images, where that is wanted."""
        model, self._model = self._model, None
        if model is None:
            return
        context, traffic = self._context, Traffic()
        # One may be back as another node; it is too late for others.
        only = context.registry.clients
        newcomers = partial(admit_newcomers, context, only=only)
        evaluation = evaluate_at_clients(context, model, traffic, newcomers)
        context.recorder.add_costs(up=traffic.up, down=traffic.down)
        if evaluation:
            accuracy = self._outcome["accuracy"]
            self._outcome |= evaluation_values(context, evaluation, accuracy)

    def _check_coverage(self) -> None:
        """End the run, its results written down, if too few clients were counted."""
        shortfall = self._statistics.shortfall() if self._statistics else None
        if shortfall and self._solution:
            self._finish()
        if shortfall:
            raise RunError(shortfall)

    def _fine_tune(self) -> None:
        """Train the model further.

        What a failed round leaves is the model before it; with a guard, the start.
        """
        context, config = self._context, self._config
        if config.finetune == "none":
            return
        solution = self._solution
        start = initial_classifier(context, solution, self._checkpoint)
        self._start = Start.of(context, solution) if solution else None
        rule = self._start.rule if self._start else None
        # The statistics may be larger than all that trains. The collector is needed:
        # a strategy and its generator refer to each other.
        self._snapshot = self._statistics = self._solution = solution = None
        gc.collect()
        tuning = FineTuningPhase.prepare(context, start, self._checkpoint, rule)
        self._tuning = tuning
        try:
            tuning.run()
        finally:
            # What the guard has not let through must not replace a closed-form start.
            if tuning.is_consistent and not tuning.guard:
                save_model(context.directory.model_path, tuning.saved_model())
        closed_form = self._outcome.get("accuracy")
        self._outcome |= {
            "finetune": config.finetune,
            "optimizer": config.optimizer,
            "temperature": tuning.start.temperature,
            "closed_form_accuracy": closed_form,
            "accuracy": None,
        }
        if tuning.stopped:
            self._outcome["stopped"] = tuning.stopped
        for key in ("client_accuracy", "clients_evaluated", "not_evaluated"):
            self._outcome.pop(key, None)  # of the start

    def _choose_model(self) -> None:
        """Decide between the softmax, a refit and the start, and save the model."""
        if not self._tuning:
            return
        final, measured = choose_model(self._context, self._tuning, self._start)
        self._outcome |= {**final.metrics, **measured, "model": final.kind}
        self._model, self._counts = final.model, final.counts
        save_model(self._context.directory.model_path, final.model)

    def _finish(self) -> None:
        """Write the summary and the picture."""
        context, counts = self._context, self._counts
        confusions = counts.confusions() if counts else []
        context.directory.write_confusion(context.class_names, confusions)
        context.recorder.finish(self._outcome)


def _measured(metrics: Metrics | None) -> dict[str, float]:
    """Return what was measured on the server's test images, and how many they are."""
    return {**metrics.values(), "test_images": metrics.total} if metrics else {}
