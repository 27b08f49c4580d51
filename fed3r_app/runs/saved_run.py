"""A finished run, worked on later: its statistics changed, its classifier solved anew.

No client is asked here. What others must not do meanwhile, the lock of the directory
prevents; a crash between two files is found by `fed3r audit`, and mended by the same
command given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from logging import WARNING

import torch
from flwr.common.logger import log

from fed3r_app.config import SECAGG, Config
from fed3r_app.core import (
    HEADS,
    METRICS,
    Contribution,
    FeatureMap,
    HeadOptions,
    InconsistentStatistics,
    Limits,
    Metrics,
    RidgeStatistics,
    check_contribution,
    select_lambda,
    solve_head,
)
from fed3r_app.core.names import METHODS
from fed3r_app.evaluation import EvaluationSet, ServerData, compare_heads
from fed3r_app.features.backbone import resolve_device
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.gaussian import private_lambda
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import FORGOTTEN, READMITTED, REPLACED, LedgerEntry
from fed3r_app.runs.model_file import SavedModel, save_model, saved_backbone
from fed3r_app.runs.snapshots import Snapshot, load_snapshot
from fed3r_app.runs.statistics_store import StatisticsStore
from fed3r_app.words import first_names

_EPS = torch.finfo(torch.float64).eps
# How much of what is left, relatively, may be rounding errors of what was subtracted.
_MAX_ROUNDING = 1e-8

# What the summary says of an evaluation at the clients.
_OF_CLIENTS = (
    *("client_accuracy", "client_test_images"),
    *("clients_evaluated", "not_evaluated"),
)


class SavedRun:
    """The statistics of a run with the settings it was begun with."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._test_sets: list[EvaluationSet | None] = []
        self.config = Config.from_run_config(directory.read_config())
        if not directory.statistics_path.is_file():
            raise FileNotFoundError(
                f"{directory.path} must hold the statistics of a run, got no "
                f"{directory.statistics_path.name} there. Did it count any client?"
            )
        self.snapshot: Snapshot = load_snapshot(directory.statistics_path)
        self.state = StatisticsStore(directory, self.config.keep_contributions)

    @property
    def feature_map(self) -> FeatureMap:
        """The map that the features of the statistics were made with."""
        settings: Mapping[str, object] = self.snapshot.settings
        names = [field.name for field in fields(FeatureMap)]
        return FeatureMap(**{name: settings[name] for name in names})  # type: ignore[arg-type]

    def check_can_change(self) -> None:
        """Raise unless clients can be taken out of the model, or put into it."""
        if self.config.dp_epsilon:
            raise ValueError(
                f"{self.directory.path} must be a run without differential privacy, "
                f"got dp-epsilon = {self.config.dp_epsilon:g}: its statistics were "
                "released once, with noise."
            )
        self.check_is_closed_form()

    @property
    def is_fine_tuned(self) -> bool:
        """Whether the run has a fine-tuning, from its beginning or added later."""
        return self.config.finetune != "none" or self.directory.checkpoint_path.exists()

    def check_is_closed_form(self) -> None:
        """Raise if the run's model has been fine-tuned."""
        if self.is_fine_tuned:
            raise ValueError(
                f"{self.directory.path} must be a run without fine-tuning, got one "
                "with: a trained model can't be taken apart again."
            )

    def check_counts(self, client: str) -> None:
        """Raise unless a client is in the statistics, and its part is known."""
        if self.config.privacy == SECAGG:
            raise ValueError(
                f"{self.directory.path} must be a run without secure aggregation, got "
                f"privacy = {SECAGG!r}: a sum over a group can't be taken apart."
            )
        if client not in self.snapshot.contributions:
            named = first_names([*self.snapshot.contributions], 10) or "none"
            raise ValueError(
                f"CLIENT must be one of those in the statistics ({named}), got "
                f"{client!r}."
            )

    def forget(self, client: str, contribution: Contribution | None = None) -> bool:
        """Take a client out of the statistics, exactly and for good.

        ``contribution`` is what it has sent once more. Without it, return False where
        not enough was kept: then the client must be asked.
        """
        rest = dict(self.snapshot.contributions)
        digest = rest.pop(client)
        without = self._without(client, contribution)
        if without is None:
            return False
        self._check_rest(without, client)
        forgotten = tuple(sorted({*self.snapshot.forgotten, client}))
        self.snapshot = replace(
            self.snapshot, statistics=without, contributions=rest, forgotten=forgotten
        )
        self.state.save_without(self.snapshot, LedgerEntry(client, FORGOTTEN, digest))
        return True

    def _without(
        self, client: str, contribution: Contribution | None = None
    ) -> RidgeStatistics | None:
        """Return the statistics without a client; None if it must be asked for its own.

        Those of the others are added up anew where all were kept: nothing is left then
        of a client with huge features, not even rounding errors.
        """
        stats = self.snapshot.statistics
        total = self.state.kept_total(self.snapshot, except_for=client)
        if total is not None:
            return total
        part = contribution or self.state.kept(self.snapshot, client)
        if part is None:
            return None
        without = stats - part.statistics()
        lost = _EPS * float(part.diagonal.sum())
        if lost > _MAX_ROUNDING * float(without.diagonal.sum()) and without.n:
            raise ValueError(
                f"Client {client} must be small enough to be subtracted from the "
                "statistics, got one whose rounding errors would spoil what is left. "
                "Begin a run without it; with keep-contributions=true it could have "
                "been forgotten."
            )
        return without

    def check_consistent(self, stats: RidgeStatistics) -> None:
        """Raise InconsistentStatistics unless these can be of images at all."""
        # float64 sums over many clients are rounded more often than one client's.
        half = self.config.upload_dtype == "float16"
        check_contribution(stats, Limits(), torch.float16 if half else torch.float32)

    def _check_rest(self, stats: RidgeStatistics, client: str) -> None:
        """Raise unless what is left without a client can be saved."""
        try:
            self.check_consistent(stats)
        except InconsistentStatistics as error:
            raise ValueError(
                f"What is left without client {client} must be statistics of images, "
                f"got others: {error} Nothing was changed: begin a run without it."
            ) from None

    def readmit(self, client: str) -> None:
        """Let a forgotten client be asked again."""
        forgotten = list(self.snapshot.forgotten)
        if client not in forgotten:
            raise ValueError(
                f"A client to admit again must have been forgotten, got {client!r}. "
                f"Forgotten: {', '.join(forgotten) or 'none'}."
            )
        forgotten.remove(client)
        self.snapshot = replace(self.snapshot, forgotten=tuple(forgotten))
        self.state.save(self.snapshot)
        self.state.ledger.append(LedgerEntry(client, READMITTED))

    def replace(self, new: RidgeStatistics, entry: LedgerEntry) -> None:
        """Replace a client's contribution to the statistics by another one.

        The earlier one must have been kept, and the new one by now, too; the entry is
        what the client said with it.
        """
        without = self._without(entry.client)
        assert without is not None
        self._check_rest(without, entry.client)
        contributions = self.snapshot.contributions | {entry.client: entry.digest}
        self.snapshot = replace(
            self.snapshot, statistics=without + new, contributions=contributions
        )
        self.state.save_without(self.snapshot, replace(entry, outcome=REPLACED))

    def use_method(self, method: str) -> None:
        """Take another method with the same statistics; ``write_model`` keeps it."""
        self.config = self.config.with_method(method)

    def solve(self, ridge_lambda: float | str) -> SavedModel:
        """Return the classifier of the statistics; "auto" chooses lambda from them."""
        config, settings = self.config, self.snapshot.settings
        stats = self._statistics()
        if not stats.n:
            raise ValueError(f"{self.directory.path} has no images left to solve with.")
        head = METHODS[config.method].head
        lam = self._penalty(ridge_lambda) if HEADS[head].uses_lambda else None
        options = HeadOptions(lam, config.normalize_classes, config.fit_intercept)
        return SavedModel(
            classifier=solve_head(head, stats, options).to("cpu"),
            class_names=self.snapshot.class_names,
            method=config.method,
            ridge_lambda=lam,
            backbone=BackboneSpec.of_fingerprint(settings, config.weights),
            feature_map=self.feature_map,
        )

    def _statistics(self) -> RidgeStatistics:
        """Return the statistics, where the run computes."""
        return self.snapshot.statistics.to(resolve_device(self.config.device))

    def _penalty(self, ridge_lambda: float | str) -> float:
        """Return a lambda that is given, or the one that "auto" chooses."""
        if ridge_lambda != "auto":
            return float(ridge_lambda)
        stats, sigma = self._statistics(), self.snapshot.settings.get("dp-sigma")
        return private_lambda(float(sigma), stats.d) if sigma else select_lambda(stats)

    def evaluate(self, model: SavedModel) -> Metrics | None:
        """Return what a model gets right on the test images; None without any here."""
        test_set = self._test_set(model)
        return test_set.evaluate(model.classifier) if test_set else None

    def _test_set(self, model: SavedModel) -> EvaluationSet | None:
        """Return the test images with the features of a model, where there are any.

        All models of the run have the same: they are read once.
        """
        if not self._test_sets:
            self._test_sets.append(self._load_test_set(model))
        return self._test_sets[0]

    def _load_test_set(self, model: SavedModel) -> EvaluationSet | None:
        config, device = self.config, resolve_device(self.config.device)
        try:
            data = ServerData.load(config)
            if data.test_images is None:
                return None
            backbone = saved_backbone(model, data.feature_dim)
            features = data.test_features(backbone, device, config.extract_dtype)
            labels = data.test_labels(model.class_names)
        except (OSError, ValueError) as error:
            # The model is right all the same, and the files must agree with it.
            log(WARNING, "The accuracy is not measured again: %s", error)
            return None
        assert features is not None
        return EvaluationSet(features, labels, model.feature_map, device)

    def write_model(self, ridge_lambda: float | str | None = None) -> SavedModel | None:
        """Solve, and write model and summary; without images there is no model.

        Without ``ridge_lambda`` it is that of the run config. Another method than the
        run began with is that of the run from now on.
        """
        lam = self.config.ridge_lambda if ridge_lambda is None else ridge_lambda
        model = self.solve(lam) if self.snapshot.statistics.n else None
        self.directory.change_config(method=self.config.method)
        if model:
            save_model(self.directory.model_path, model)
        else:
            self.directory.model_path.unlink(missing_ok=True)
        self._write_summary(model)
        return model

    def _write_summary(self, model: SavedModel | None) -> None:
        """Bring the summary up to date, where the run has come to one."""
        if not self.directory.summary_path.is_file():
            return
        summary, snapshot = self.directory.read_summary(), self.snapshot
        before = summary.get("missing_clients")
        clients = before if isinstance(before, list) else []
        missing = [client for client in clients if client not in snapshot.forgotten]
        absent = (snapshot.statistics.counts == 0).nonzero().flatten().tolist()
        summary.pop("heads", None)
        counts, values = self._evaluated(model) if model else (None, {})
        confusions = counts.confusions() if counts else []
        self.directory.write_confusion(snapshot.class_names, confusions)
        summary |= {
            **dict.fromkeys(METRICS),
            **values,
            "method": self.config.method,
            # No client was asked.
            **dict.fromkeys(_OF_CLIENTS),
            "clients": len(snapshot.contributions) + len(missing),
            "clients_counted": len(snapshot.contributions),
            "missing_clients": missing,
            "forgotten_clients": list(snapshot.forgotten),
            "num_samples": snapshot.statistics.n,
            "absent_classes": [snapshot.class_names[c] for c in absent],
            **self.state.image_counts(),
            "ridge_lambda": model.ridge_lambda if model else None,
        }
        self.directory.write_summary(summary)

    def _evaluated(self, model: SavedModel) -> tuple[Metrics | None, dict[str, object]]:
        """Return what a model gets right on the test images, and the summary's words.

        Of both nothing where there are no test images.
        """
        test_set = self._test_set(model)
        if not test_set:
            return None, {}
        heads = compare_heads(
            self.config,
            self._statistics(),
            lambda: model.ridge_lambda or self._penalty(self.config.ridge_lambda),
            test_set,
        )
        counts = test_set.evaluate(model.classifier)
        values = {**counts.values(), "test_images": counts.total}
        return counts, {**values, **({"heads": heads} if heads else {})}
