"""Which model a fine-tuning leaves: its softmax, a refit, or the start.

Decided on the clients' training images alone: by their accuracy for a softmax, and by
generalised cross-validation for Fed3R's classifier of the new features. The latter
guards against a collapse, not against overfitting: features that were trained on the
labels flatter it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.common.logger import log

from fed3r_app.core import Metrics
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.server.context import RunContext
from fed3r_app.server.fine_tuning_phase import FineTuningPhase
from fed3r_app.server.quality_probe import RefitRule, TooFewClients, probe
from fed3r_app.server.statistics_phase import Solution
from fed3r_app.server.training_fit import accuracies, measure_fit

TUNED, REFIT, START = "fine-tuned", "refit", "closed form"


@dataclass(frozen=True, eq=False)
class FinalModel:
    """A model, its name among the three, and its metrics on the test images."""

    model: SavedModel
    kind: str
    metrics: Mapping[str, float]
    counts: Metrics | None  # what they are of

    @classmethod
    def of(
        cls,
        context: RunContext,
        kind: str,
        solution: Solution,
        tuning: FineTuningPhase | None = None,
    ) -> FinalModel:
        """Return the model that a solution is, on the features of a tuned backbone."""
        arrays = tuning.backbone_arrays() if tuning else None
        counts = solution.metrics
        metrics = counts.values() if counts else {}
        return cls(solution.model(context, arrays), kind, metrics, counts)


@dataclass(frozen=True, eq=False)
class Start:
    """A closed-form start, and what a refit must be better than where that matters."""

    final: FinalModel
    rule: RefitRule | None

    @classmethod
    def of(cls, context: RunContext, solution: Solution) -> Start:
        """Return the start that a solution is."""
        config = context.config
        needs_rule = config.guard and config.moves_backbone
        rule = RefitRule.of(solution.statistics) if needs_rule else None
        return cls(FinalModel.of(context, START, solution), rule)


class ModelChoice:
    """What a fine-tuning left, of which the model of the run is chosen.

    With ``guard`` a closed-form start stays unless what came of it is better.
    """

    def __init__(
        self, context: RunContext, tuning: FineTuningPhase, start: Start | None
    ) -> None:
        self._context = context
        self._tuning = tuning
        self._start = start if context.config.guard else None
        if tuning.counts is None:  # resumed with no round left
            tuning.evaluate()
        self._softmax = FinalModel(
            tuning.saved_model(), TUNED, tuning.metrics, tuning.counts
        )
        self._probed: Solution | None = None

    def choose(self) -> FinalModel:
        """Return the model."""
        config, start = self._context.config, self._start
        if config.probe:
            self._probe()
        if start is None:
            return self._refit() if config.refits else self._softmax
        replacement, reasons = self._replacement(start)
        if replacement:
            return replacement
        log(WARNING, "The closed-form start stays the model: %s.", "; ".join(reasons))
        return start.final

    def measured(self) -> dict[str, float | None]:
        """Return the accuracies of those that were made."""
        measured = {"softmax_accuracy": self._softmax.metrics.get("accuracy")}
        if self._probed:
            metrics = self._probed.metrics
            measured["probe_accuracy"] = metrics.accuracy if metrics else None
        return measured

    def _replacement(self, start: Start) -> tuple[FinalModel | None, list[str]]:
        """Return what may replace the start, and why something else may not."""
        config, reasons = self._context.config, list[str]()
        if not self._tuning.trained:
            return None, ["no round of training was good"]
        if not config.refits:
            objection = self._objection_to_softmax()
            if not objection:
                return self._softmax, []
            reasons.append(objection)
        if start.rule and (config.refits or config.refit == "auto"):
            try:
                objection = start.rule.objection(self._probe())
            except TooFewClients as error:
                objection = str(error).rstrip(".")
            if not objection:
                return self._refit(), reasons
            reasons.append(objection)
        return None, reasons

    def _probe(self) -> Solution:
        """Return Fed3R's classifier of the fine-tuned features, solved once."""
        tuning = self._tuning
        if self._probed is None:
            arrays, features = tuning.backbone_arrays(), tuning.test_features()
            self._probed = probe(self._context, tuning.clients, arrays, features)
        return self._probed

    def _refit(self) -> FinalModel:
        return FinalModel.of(self._context, REFIT, self._probe(), self._tuning)

    def _objection_to_softmax(self) -> str | None:
        """Return why the softmax may not replace the start, None if it may."""
        tuning, model = self._tuning, self._softmax.model
        fit = measure_fit(
            self._context,
            model.classifier,
            model.feature_map,
            (tuning.start.temperature,),
            model.backbone_arrays,
        )
        assert tuning.start.fit  # it is measured where there is a guard
        now, then = accuracies(fit.by_client, tuning.start.fit.by_client)
        if now is None or then is None:
            return "no client says how both fit its training images"
        if now >= then:
            return None
        said = "on the clients' training images the fine-tuned softmax gets"
        return f"{said} {now:.2%}, the start {then:.2%}"


def choose_model(
    context: RunContext, tuning: FineTuningPhase, start: Start | None
) -> tuple[FinalModel, dict[str, float | None]]:
    """Return the model of a run that has been fine-tuned, and what was measured."""
    choice = ModelChoice(context, tuning, start)
    final = choice.choose()
    log(INFO, "The model of the run: %s", final.kind)
    return final, choice.measured()
