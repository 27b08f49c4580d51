"""An experiment: its runs, and what is to be shown of them."""

from __future__ import annotations

from dataclasses import dataclass

from fed3r_app.config import DEFAULTS
from simulation.analyses.coupon_collector import Coupons
from simulation.runner.composition import Source, find
from simulation.runner.run_grid import SEED, ExperimentRun, RunGrid
from simulation.runner.yaml_file import YamlValue

FIGURES = ("curves", "final", "kernel")
MEASURES = ("accuracy", "closed_form_accuracy", "probe_accuracy")
_KEYS = ("title", "about", "base", "points", "axes", "reference", "target", "plot")


@dataclass(frozen=True)
class Plot:
    """What to draw.

    Parameters
    ----------
    figures : tuple of str
        Of FIGURES.
    panels : str or None
        Axis with one row of pictures for each of its values.
    x : str or None
        Axis along which the figure `final` is drawn; None draws bars.
    measures : tuple of str
        What the figure `final` shows.
    """

    figures: tuple[str, ...]
    panels: str | None = None
    x: str | None = None
    measures: tuple[str, ...] = ("accuracy",)


@dataclass(frozen=True)
class Target:
    """Accuracies to reach, and the curve that speed-ups are relative to."""

    accuracies: tuple[float, ...]
    baseline: str


@dataclass(frozen=True)
class Kernel:
    """Random features against the exact kernel, on a subset."""

    per_class: int
    dims: tuple[int, ...]
    seeds: int


@dataclass(frozen=True)
class Experiment:
    """An experiment that has been checked."""

    source: Source
    title: str
    about: str
    runs: tuple[ExperimentRun, ...]
    reference: ExperimentRun | None
    plot: Plot
    target: Target | None
    kernel: Kernel | None
    coupons: Coupons | None

    @property
    def name(self) -> str:
        """Its name, that of its folder of results."""
        return self.source.name

    @property
    def all_runs(self) -> tuple[ExperimentRun, ...]:
        """The grid, and the reference where there is one."""
        return (*self.runs, *([self.reference] if self.reference else []))


def load(name: str, data_path: str = "") -> list[Experiment]:
    """Return the experiments that a name, a pattern or a path means."""
    return [read_experiment(source, data_path) for source in find(name)]


def read_experiment(source: Source, data_path: str = "") -> Experiment:
    """Return an experiment; raise ExperimentError for what is wrong with it."""
    content = source.read()
    parts = content.fields(*_KEYS, "kernel", "coupons")
    if "title" not in parts:
        raise content.error("title must say what the experiment is about.")
    grid = _grid(parts, data_path)
    if not grid.axes and "coupons" not in parts:
        raise content.error("axes must have at least one axis.")
    runs = tuple(grid.runs())
    return Experiment(
        source=source,
        title=parts["title"].text(),
        about=parts["about"].text() if "about" in parts else "",
        runs=runs,
        reference=_reference(parts["reference"], grid)
        if "reference" in parts
        else None,
        plot=_plot(parts.get("plot"), grid),
        target=_target(parts["target"], runs) if "target" in parts else None,
        kernel=_kernel(parts["kernel"]) if "kernel" in parts else None,
        coupons=_coupons(parts["coupons"]) if "coupons" in parts else None,
    )


def _grid(parts: dict[str, YamlValue], data_path: str) -> RunGrid:
    base, points, axes = (
        parts[key].mapping() if key in parts else {}
        for key in ("base", "points", "axes")
    )
    # The seed is the last label of a run.
    ordered = sorted(axes.items(), key=lambda item: item[0] == SEED)
    for axis in axes.values():
        axis.items()  # a single text would be no list
    return RunGrid(
        defaults=DEFAULTS,
        base=base,
        points={name: value.mapping() for name, value in points.items()},
        axes={name: value.distinct() for name, value in ordered},
        data_path=data_path,
    )


def _reference(value: YamlValue, grid: RunGrid) -> ExperimentRun:
    """Return the run of a point that is drawn as a level line, at the first seed."""
    if value.text() not in grid.points:
        raise value.must_be(f"the name of a point ({', '.join(grid.points)})")
    seeds = {SEED: grid.axes[SEED][0]} if SEED in grid.axes else {}
    return grid.run({"reference": value, **seeds})


def _plot(value: YamlValue | None, grid: RunGrid) -> Plot:
    if value is None:
        return Plot(("curves",) if grid.axes else ())
    parts = value.fields("figures", "panels", "x", "measures")
    for key in ("panels", "x"):
        if key in parts and parts[key].text() not in grid.axes:
            raise parts[key].must_be(f"one of the axes ({', '.join(grid.axes)})")
    return Plot(
        _choices(parts.get("figures"), FIGURES) or ("curves",),
        parts["panels"].text() if "panels" in parts else None,
        parts["x"].text() if "x" in parts else None,
        _choices(parts.get("measures"), MEASURES) or ("accuracy",),
    )


def _choices(value: YamlValue | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of a list that must be among some."""
    texts = tuple(each.text() for each in value.distinct()) if value else ()
    for text in texts:
        if value and text not in allowed:
            raise value.error(
                f"{value.key} must be of {', '.join(allowed)}, got {text!r}."
            )
    return texts


def _target(value: YamlValue, runs: tuple[ExperimentRun, ...]) -> Target:
    parts = value.fields("accuracy", "baseline", need=True)
    accuracy, baseline = parts["accuracy"], parts["baseline"]
    labels = {curve_of(run) for run in runs}
    if baseline.text() not in labels:
        raise baseline.must_be(f"one of the curves ({'; '.join(sorted(labels))})")
    values = accuracy.items() if isinstance(accuracy.value, list) else [accuracy]
    return Target(tuple(each.share() for each in values), baseline.text())


def _kernel(value: YamlValue) -> Kernel:
    parts = value.fields("per-class", "dims", "seeds", need=True)
    dims = tuple(each.whole() for each in parts["dims"].items())
    return Kernel(parts["per-class"].whole(), dims, parts["seeds"].whole())


def _coupons(value: YamlValue) -> Coupons:
    keys = ("federations", "clients-per-round", "shares", "simulations")
    parts = value.fields(*keys, need=True)
    per_round = tuple(each.whole() for each in parts["clients-per-round"].items())
    federations = parts["federations"].mapping()
    return Coupons(
        {name: each.whole(max(per_round)) for name, each in federations.items()},
        per_round,
        tuple(each.share(or_all=True) for each in parts["shares"].items()),
        parts["simulations"].whole(),
    )


def curve_of(run: ExperimentRun, *without: str) -> str:
    """Return the name of the curve that a run belongs to: all its labels but the seed.

    Parameters
    ----------
    run : ExperimentRun
    *without : str
        Further axes that are told apart otherwise.
    """
    dropped = (SEED, *without)
    kept = [text for axis, text in run.labels.items() if axis not in dropped]
    return ", ".join(kept) or "all"
