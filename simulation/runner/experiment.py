"""An experiment: its runs, and what is to be shown of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fed3r_app.files.yaml_file import YamlValue
from simulation.analyses.coupon_collector import Coupons
from simulation.runner.composition import Source, find
from simulation.runner.run_grid import SEED, ExperimentRun, RunGrid

FIGURES = ("curves", "final", "kernel")
MEASURES = (
    *("accuracy", "closed_form_accuracy"),
    *("softmax_accuracy", "probe_accuracy"),
)
_KEYS = (
    *("title", "about", "base", "points", "axes", "reference", "target", "plot"),
    *("kernel", "coupons", "paper"),
)
T = TypeVar("T")


@dataclass(frozen=True)
class Plot:
    """What to draw: some of FIGURES.

    Curves have one row of pictures for each value of the axis ``panels``; the figure
    `final` shows some MEASURES along the axis ``x``, or as bars.
    """

    figures: tuple[str, ...] = ("curves",)
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
class Paper:
    """What the paper reports of a data set, in percent by curve and measure.

    ``differences`` say in words how its set-up differs from that of the runs.
    """

    dataset: str
    numbers: Mapping[str, Mapping[str, float]]
    differences: tuple[str, ...]


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
    paper: Paper | None

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
    """Return an experiment; raise YamlError for what is wrong with it."""
    content = source.read()
    parts = content.mapping(*_KEYS)
    if "title" not in parts:
        raise content.error("title must say what the experiment is about.")
    grid = _grid(parts, data_path)
    if not grid.axes and "coupons" not in parts:
        raise content.error("axes must have at least one axis.")
    runs = tuple(grid.runs())

    def optional(key: str, read: Callable[[YamlValue], T]) -> T | None:
        return read(parts[key]) if key in parts else None

    return Experiment(
        source=source,
        title=parts["title"].text(),
        about=optional("about", YamlValue.text) or "",
        runs=runs,
        reference=optional("reference", partial(_reference, grid)),
        plot=optional("plot", partial(_plot, grid)) or Plot(),
        target=optional("target", partial(_target, runs)),
        kernel=optional("kernel", _kernel),
        coupons=optional("coupons", _coupons),
        paper=optional("paper", partial(_paper, runs)),
    )


def _grid(parts: dict[str, YamlValue], data_path: str) -> RunGrid:
    base, points, axes = (
        parts[key].mapping() if key in parts else {}
        for key in ("base", "points", "axes")
    )
    for axis in axes.values():
        axis.items()  # a single text would be no list
    return RunGrid(
        base,
        {name: value.mapping() for name, value in points.items()},
        # The seed is the last label of a run.
        {name: axes[name].distinct() for name in sorted(axes, key=SEED.__eq__)},
        data_path,
    )


def _reference(grid: RunGrid, value: YamlValue) -> ExperimentRun:
    """Return the run of a point that is drawn as a level line, at the first seed."""
    value.one_of(grid.points, "the name of a point")
    seeds = {SEED: grid.axes[SEED][0]} if SEED in grid.axes else {}
    return grid.run({"reference": value, **seeds})


def _plot(grid: RunGrid, value: YamlValue) -> Plot:
    parts = value.mapping("figures", "panels", "x", "measures")
    panels, x = (
        parts[key].one_of(grid.axes, "one of the axes") if key in parts else None
        for key in ("panels", "x")
    )
    figures, measures = (
        tuple(each.one_of(known, f"one of the {key}") for each in parts[key].distinct())
        if key in parts
        else known[:1]
        for key, known in (("figures", FIGURES), ("measures", MEASURES))
    )
    return Plot(figures, panels, x, measures)


def _target(runs: tuple[ExperimentRun, ...], value: YamlValue) -> Target:
    parts = value.mapping("accuracy", "baseline", need=True)
    curves = sorted({curve_of(run) for run in runs})
    baseline = parts["baseline"].one_of(curves, "one of the curves")
    accuracy = parts["accuracy"]
    values = accuracy.items() if isinstance(accuracy.value, list) else [accuracy]
    return Target(tuple(each.share() for each in values), baseline)


def _kernel(value: YamlValue) -> Kernel:
    parts = value.mapping("per-class", "dims", "seeds", need=True)
    dims = tuple(each.whole() for each in parts["dims"].items())
    return Kernel(parts["per-class"].whole(), dims, parts["seeds"].whole())


def _coupons(value: YamlValue) -> Coupons:
    keys = ("federations", "clients-per-round", "shares", "simulations")
    parts = value.mapping(*keys, need=True)
    per_round = tuple(each.whole() for each in parts["clients-per-round"].items())
    federations = parts["federations"].mapping()
    return Coupons(
        {name: each.whole(max(per_round)) for name, each in federations.items()},
        per_round,
        tuple(each.share(or_all=True) for each in parts["shares"].items()),
        parts["simulations"].whole(),
    )


def _paper(runs: tuple[ExperimentRun, ...], value: YamlValue) -> Paper:
    parts = value.mapping("dataset", "numbers", "differences", need=True)
    curves = parts["numbers"].mapping(*map(curve_of, runs))
    numbers = {
        curve: {key: cell.percentage() for key, cell in row.mapping(*MEASURES).items()}
        for curve, row in curves.items()
    }
    differences = tuple(each.text() for each in parts["differences"].distinct())
    return Paper(parts["dataset"].text(), numbers, differences)


def curve_of(run: ExperimentRun, *without: str) -> str:
    """Return the name of the curve of a run: its labels but the seed and some axes."""
    dropped = (SEED, *without)
    kept = [text for axis, text in run.labels.items() if axis not in dropped]
    return ", ".join(kept) or "all"
