"""Which model a fine-tuning leaves: its softmax, a refit, or the start.

Decided on the clients' training images alone: by their accuracy for a softmax, and by
generalised cross-validation for Fed3R's classifier of the new features. The latter
guards against a collapse, not against overfitting: features that were trained on the
labels flatter it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from logging import INFO, WARNING

from flwr.common.logger import log

from fed3r_app.core import select_penalty
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.server.context import RunContext
from fed3r_app.server.fine_tuning_phase import FineTuningPhase
from fed3r_app.server.quality_probe import errors, probe
from fed3r_app.server.statistics_phase import Solution
from fed3r_app.server.training_fit import accuracy_on, measure_fit

TUNED, REFIT, START = "fine-tuned", "refit", "closed form"


@dataclass(frozen=True, eq=False)
class Start:
    """A closed-form start, and how good it is."""

    model: SavedModel
    metrics: Mapping[str, float]  # on the test images
    error: float | None  # of its statistics, by cross-validation; None if not needed
    num_samples: int

    @classmethod
    def of(cls, context: RunContext, solution: Solution) -> Start:
        """Return the start that a solution is."""
        config, stats = context.config, solution.statistics
        needs_error = config.guard and config.moves_backbone
        return cls(
            model=solution.model(context),
            metrics=solution.metrics.values() if solution.metrics else {},
            error=select_penalty(stats).error if needs_error else None,
            num_samples=stats.n,
        )


@dataclass(frozen=True, eq=False)
class FinalModel:
    """The model, its name among the three, and its metrics on the test images."""

    model: SavedModel
    kind: str
    metrics: Mapping[str, float]


class _Choice:
    """What a fine-tuning left, of which the final model is chosen."""

    def __init__(
        self, context: RunContext, tuning: FineTuningPhase, start: Start | None
    ) -> None:
        self._context = context
        self._tuning = tuning
        self._start = start

    @cached_property
    def softmax(self) -> FinalModel:
        """The fine-tuned softmax classifier."""
        return FinalModel(self._tuning.saved_model(), TUNED, self._tuning.metrics)

    @cached_property
    def probed(self) -> Solution:
        """Fed3R's classifier of the fine-tuned features, solved when asked for."""
        tuning = self._tuning
        features = tuning.test_features()
        arrays = tuning.backbone_arrays()
        return probe(self._context, tuning.clients, arrays, features)

    @cached_property
    def refit(self) -> FinalModel:
        """The same as a model."""
        arrays, metrics = self._tuning.backbone_arrays(), self.probed.metrics
        model = self.probed.model(self._context, arrays)
        return FinalModel(model, REFIT, metrics.values() if metrics else {})

    def final(self) -> FinalModel:
        """Return the model."""
        config, start = self._context.config, self._start
        if start is None or not config.guard:
            return self.refit if config.refits else self.softmax
        reasons = ["no round of training was good"] if not self._tuning.trained else []
        if not config.refits and not reasons:
            reasons += self._against_softmax()
            if not reasons:
                return self.softmax
        may_refit = config.refits or (config.moves_backbone and config.refit == "auto")
        if self._tuning.trained and may_refit:
            against = self._against_refit(start)
            if not against:
                return self.refit
            reasons += against
        log(WARNING, "The closed-form start stays the model: %s.", "; ".join(reasons))
        return FinalModel(start.model, START, start.metrics)

    def measured(self) -> dict[str, float | None]:
        """Return the accuracies of those that were made."""
        accuracies = {"softmax_accuracy": self.softmax.metrics.get("accuracy")}
        if self._context.config.probe or "probed" in self.__dict__:
            metrics = self.probed.metrics
            accuracies["probe_accuracy"] = metrics.accuracy if metrics else None
        return accuracies

    def _against_softmax(self) -> list[str]:
        """Return why the softmax may not take the place of the start, if so."""
        tuning, model = self._tuning, self.softmax.model
        fit = measure_fit(
            self._context,
            model.classifier,
            model.feature_map,
            (tuning.start.temperature,),
            model.backbone_arrays,
        )
        assert tuning.start.fit
        then = accuracy_on(tuning.start.fit.by_client, fit.by_client)
        now = accuracy_on(fit.by_client, tuning.start.fit.by_client)
        if now >= then:
            return []
        said = "on the clients' training images the fine-tuned softmax gets"
        return [f"{said} {now:.2%}, the start {then:.2%}"]

    def _against_refit(self, start: Start) -> list[str]:
        """Return why a refit may not take the place of the start, if so."""
        assert start.error is not None
        stats = self.probed.statistics
        if stats.n != start.num_samples:
            said = "the new features are of"
            return [f"{said} {stats.n} images, its own of {start.num_samples}"]
        error = select_penalty(stats).error
        if error < start.error:
            return []
        return [f"the new features' error by {errors(error, start.error)}"]


def choose_model(
    context: RunContext, tuning: FineTuningPhase, start: Start | None
) -> tuple[FinalModel, dict[str, float | None]]:
    """Return the model of a run that has been fine-tuned, and what was measured.

    With ``guard`` a closed-form start stays unless what came of it is better.
    """
    choice = _Choice(context, tuning, start)
    final = choice.final()
    log(INFO, "The model of the run: %s", final.kind)
    return final, choice.measured()
