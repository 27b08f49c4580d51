"""A run from its first exchange to its summary."""

from __future__ import annotations

from flwr.serverapp import Grid

from fed3r_app.config import Config
from fed3r_app.recorder import Recorder
from fed3r_app.saved_model import SavedModel, save_model
from fed3r_app.server.closed_form import (
    ClosedForm,
    Solution,
    absent_classes,
    choose_feature_map,
)
from fed3r_app.server.session import Session
from fed3r_app.snapshots import load_snapshot


def run(grid: Grid, config: Config) -> None:
    """Meet the clients, solve the classifier, write down what came of it."""
    session = Session(config)
    statistics_path = session.directory.statistics_path
    earlier = load_snapshot(statistics_path) if config.resume else None
    needs_moments = config.method == "fed3r-rf" and config.rf_sigma == "auto"
    roster = session.meet(grid, with_moments=needs_moments and not earlier)
    progress = earlier.progress if earlier else {}
    recorder = Recorder(session.directory, len(roster.clients), progress)
    recorder.add_costs(up=roster.upload_bytes, down=roster.download_bytes)
    feature_map = choose_feature_map(session, roster, earlier)
    phase = ClosedForm(session, roster, feature_map, recorder, earlier)
    solution = phase.run(grid)
    if solution:
        _conclude(grid, session, phase, solution, recorder)
    if sentence := phase.shortfall():
        raise RuntimeError(sentence)


def _conclude(
    grid: Grid,
    session: Session,
    phase: ClosedForm,
    solution: Solution,
    recorder: Recorder,
) -> None:
    """Write model, summary and picture."""
    save_model(session.directory.model_path, _model(session, solution))
    cohorts, stats, map_ = phase.cohorts, solution.statistics, solution.feature_map
    outcome: dict[str, object] = {
        "method": session.config.method,
        "dataset": session.config.dataset,
        "status": "partial" if cohorts.missing else "complete",
        "accuracy": solution.accuracy,
        "clients": len(cohorts.clients),
        "clients_counted": len(cohorts.counted),
        "missing_clients": list(cohorts.missing),
        "num_samples": stats.n,
        "num_classes": session.num_classes,
        "absent_classes": absent_classes(session.dataset.class_names, stats),
        "feature_dim": map_.dim,
        "ridge_lambda": solution.ridge_lambda,
        "rf_sigma": solution.feature_map.rf_sigma
        if solution.feature_map.rf_dim
        else None,
    }
    if session.config.client_evaluation:
        outcome["client_accuracy"] = phase.accuracy_at_clients(grid, solution)
    recorder.finish(outcome)


def _model(session: Session, solution: Solution) -> SavedModel:
    W, present = solution.classifier
    config = session.config
    return SavedModel(
        W=W,
        present=present,
        class_names=session.dataset.class_names,
        method=config.method,
        ridge_lambda=solution.ridge_lambda,
        backbone=config.backbone,
        weights=config.weights,
        weights_digest=session.backbone.digest,
        image_size=config.image_size,
        feature_map=solution.feature_map,
    )
