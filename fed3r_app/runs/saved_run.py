"""A finished run, worked on later: its statistics changed, its classifier solved anew.

No client is asked here. What others must not do meanwhile, the lock of the directory
prevents; a crash between two files is found by `fed3r audit`, and mended by the same
command given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from fed3r_app.config import SECAGG, Config
from fed3r_app.core import (
    HEADS,
    METRICS,
    Contribution,
    FeatureMap,
    HeadOptions,
    Metrics,
    RidgeStatistics,
    select_lambda,
    solve_head,
)
from fed3r_app.core.names import METHODS
from fed3r_app.evaluation import EvaluationSet, ServerData
from fed3r_app.features.backbone import resolve_device
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.gaussian import private_lambda
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import FORGOTTEN, REPLACED, LedgerEntry
from fed3r_app.runs.model_file import SavedModel, save_model, saved_backbone
from fed3r_app.runs.snapshots import Snapshot, load_snapshot
from fed3r_app.runs.state import RunState


class SavedRun:
    """The statistics of a run, and what follows from them.

    Parameters
    ----------
    directory : RunDirectory
        Its files.

    Attributes
    ----------
    config : Config
        The settings it was begun with.
    snapshot : Snapshot
        Its statistics.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.config = Config.from_run_config(directory.read_config())
        if not directory.statistics_path.is_file():
            raise FileNotFoundError(
                f"{directory.path} must hold the statistics of a run, got no "
                f"{directory.statistics_path.name} there. Did it count anybody?"
            )
        self.snapshot: Snapshot = load_snapshot(directory.statistics_path)
        self.state = RunState(directory, self.config.keep_contributions)

    @property
    def feature_map(self) -> FeatureMap:
        """The map that the features of the statistics were made with."""
        settings: Mapping[str, object] = self.snapshot.settings
        names = [field.name for field in fields(FeatureMap)]
        return FeatureMap(**{name: settings[name] for name in names})  # type: ignore[arg-type]

    @property
    def backbone(self) -> BackboneSpec:
        """The backbone that the features of the statistics were made with."""
        settings = self.snapshot.settings
        return BackboneSpec.of_fingerprint(settings, self.config.weights)

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
            clients = list(self.snapshot.contributions)
            named = ", ".join(clients[:10]) + (", …" if len(clients) > 10 else "")
            raise ValueError(
                f"CLIENT must be one of those in the statistics ({named or 'none'}), "
                f"got {client!r}."
            )

    def forget(self, client: str, contribution: Contribution) -> None:
        """Take a client out of the statistics, exactly and for good."""
        digest = self.snapshot.contributions[client]
        rest = {c: d for c, d in self.snapshot.contributions.items() if c != client}
        without = self.snapshot.statistics - contribution.statistics()
        if not rest:  # not even rounding errors of anybody
            without = RidgeStatistics.zeros(without.d, without.num_classes)
        self.snapshot = replace(
            self.snapshot,
            statistics=without,
            contributions=rest,
            forgotten=tuple(sorted({*self.snapshot.forgotten, client})),
        )
        self.state.save_without(self.snapshot, LedgerEntry(client, FORGOTTEN, digest))

    def replace(
        self, client: str, old: Contribution, new: Contribution, digest: str
    ) -> None:
        """Replace a client's contribution to the statistics by another one.

        The new one must have been kept already, where contributions are.
        """
        stats = self.snapshot.statistics - old.statistics() + new.statistics()
        contributions = self.snapshot.contributions | {client: digest}
        self.snapshot = replace(
            self.snapshot, statistics=stats, contributions=contributions
        )
        self.state.save_without(
            self.snapshot, LedgerEntry(client, REPLACED, digest, new.n)
        )

    def solve(self, ridge_lambda: float | str) -> SavedModel:
        """Return the classifier of the statistics; "auto" chooses lambda from them."""
        config, device = self.config, resolve_device(self.config.device)
        stats = self.snapshot.statistics.to(device)
        if not stats.n:
            raise ValueError(f"{self.directory.path} has no images left to solve with.")
        head, lam = METHODS[config.method].head, None
        if HEADS[head].uses_lambda:
            auto = ridge_lambda == "auto"
            lam = self._choose_lambda(stats) if auto else float(ridge_lambda)
        options = HeadOptions(lam, config.normalize_classes, config.fit_intercept)
        return SavedModel(
            classifier=solve_head(head, stats, options).to("cpu"),
            class_names=self.snapshot.class_names,
            method=config.method,
            ridge_lambda=lam,
            backbone=self.backbone,
            feature_map=self.feature_map,
        )

    def _choose_lambda(self, stats: RidgeStatistics) -> float:
        """Return the penalty that ``auto`` stands for in this run."""
        sigma = self.snapshot.settings.get("dp-sigma")
        return private_lambda(float(sigma), stats.d) if sigma else select_lambda(stats)

    def evaluate(self, model: SavedModel) -> Metrics | None:
        """Return what a model gets right on the test images; None without any here."""
        config, device = self.config, resolve_device(self.config.device)
        data = ServerData.load(config.dataset, config.data_path)
        if data.test_images is None:
            return None
        backbone = saved_backbone(model, data.feature_dim)
        features = data.test_features(backbone, device, config.extract_dtype)
        assert features is not None
        labels = data.test_labels(model.class_names)
        evaluation_set = EvaluationSet(features, labels, model.feature_map, device)
        return evaluation_set.evaluate(model.classifier)

    def write_model(self, ridge_lambda: float | str | None = None) -> SavedModel | None:
        """Solve, and write model and summary; without images there is no model.

        Parameters
        ----------
        ridge_lambda : float, str or None
            None takes that of the run config.
        """
        if not self.snapshot.statistics.n:
            self.directory.model_path.unlink(missing_ok=True)
            self._write_summary(None, None)
            return None
        lam = self.config.ridge_lambda if ridge_lambda is None else ridge_lambda
        model = self.solve(lam)
        save_model(self.directory.model_path, model)
        self._write_summary(model, self.evaluate(model))
        return model

    def save_model_elsewhere(self, path: Path, ridge_lambda: float | str) -> SavedModel:
        """Solve, and write the model to another file; the run stays as it is."""
        model = self.solve(ridge_lambda)
        save_model(path, model)
        return model

    def _write_summary(self, model: SavedModel | None, metrics: Metrics | None) -> None:
        """Bring the summary up to date, where the run has come to one."""
        if not self.directory.summary_path.is_file():
            return
        summary, snapshot = self.directory.read_summary(), self.snapshot
        missing = summary.get("missing_clients")
        still_missing = [
            client
            for client in (missing if isinstance(missing, list) else [])
            if client not in snapshot.forgotten
        ]
        absent = (snapshot.statistics.counts == 0).nonzero().flatten().tolist()
        self.directory.write_summary(
            summary
            | {
                **dict.fromkeys(METRICS),
                **(metrics.values() if metrics else {}),
                "client_accuracy": None,  # no client was asked
                "clients": len(snapshot.contributions) + len(still_missing),
                "clients_counted": len(snapshot.contributions),
                "missing_clients": still_missing,
                "forgotten_clients": list(snapshot.forgotten),
                "num_samples": snapshot.statistics.n,
                "absent_classes": [snapshot.class_names[c] for c in absent],
                "ridge_lambda": model.ridge_lambda if model else None,
            }
        )
