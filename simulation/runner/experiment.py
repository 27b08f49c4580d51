"""An experiment: its runs, and what is to be shown of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulation.engines.inline import default_run_config
from simulation.runner.composition import Source, find
from simulation.runner.run_grid import CLIENTS, SEED, Grid, Run, Settings
from simulation.runner.yaml_file import ExperimentError, YamlValue

PROJECT = Path(__file__).parents[2]
FIGURES = ("curves", "final", "kernel")
MEASURES = ("accuracy", "best_accuracy", "closed_form_accuracy", "probe_accuracy")
_KEYS = ("title", "about", "base", "points", "axes", "reference", "target", "plot")
_ALL_KEYS = (*_KEYS, "kernel", "coupons")


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
class Coupons:
    """Federations whose clients are drawn with replacement."""

    federations: dict[str, int]
    per_round: tuple[int, ...]
    shares: tuple[float, ...]
    simulations: int


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
    runs: tuple[Run, ...]
    reference: Run | None
    plot: Plot
    target: Target | None
    kernel: Kernel | None
    coupons: Coupons | None

    @property
    def name(self) -> str:
        """Its name, that of its folder of results."""
        return self.source.name

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The grid, and the reference where there is one."""
        return (*self.runs, *([self.reference] if self.reference else []))


def load(name: str, data_path: str = "") -> list[Experiment]:
    """Return the experiments that a name, a pattern or a path means."""
    return [read_experiment(source, data_path) for source in find(name)]


def read_experiment(source: Source, data_path: str = "") -> Experiment:
    """Return an experiment; raise ExperimentError for what is wrong with it."""
    content = source.read()
    parts = content.mapping(_ALL_KEYS)
    if "title" not in parts:
        raise content.error("title must say what the experiment is about.")
    grid = _grid(parts, data_path)
    if not grid.axes and "coupons" not in parts:
        raise content.error("axes must have at least one axis.")
    grid.check()
    runs = tuple(grid.runs()) if grid.axes else ()
    return Experiment(
        source=source,
        title=parts["title"].text(),
        about=parts["about"].text() if "about" in parts else "",
        runs=runs,
        reference=_reference(parts.get("reference"), grid),
        plot=_plot(parts.get("plot"), grid),
        target=_target(parts.get("target"), runs),
        kernel=_kernel(parts.get("kernel")),
        coupons=_coupons(parts.get("coupons")),
    )


def _grid(parts: dict[str, YamlValue], data_path: str) -> Grid:
    def mapping(key: str) -> dict[str, YamlValue]:
        return parts[key].mapping() if key in parts else {}

    points: dict[str, Settings] = {
        name: entry.mapping() for name, entry in mapping("points").items()
    }
    # The seeds of a run are the last thing to tell of it.
    axes = sorted(mapping("axes").items(), key=lambda item: item[0] == SEED)
    return Grid(
        defaults=default_run_config(PROJECT / "pyproject.toml"),
        base=mapping("base"),
        points=points,
        axes={name: entry.items() for name, entry in axes},
        data_path=data_path,
    )


def _reference(entry: YamlValue | None, grid: Grid) -> Run | None:
    """Return the run of a point that is drawn as a level line, at the first seed."""
    if entry is None:
        return None
    if entry.text() not in grid.points:
        raise entry.must_be(f"the name of a point ({', '.join(grid.points)})")
    cell = {"reference": entry}
    if SEED in grid.axes:
        cell[SEED] = grid.axes[SEED][0]
    return grid.run(cell)


def _plot(entry: YamlValue | None, grid: Grid) -> Plot:
    if entry is None:
        return Plot(("curves",) if grid.axes else ())
    parts = entry.mapping(("figures", "panels", "x", "measures"))
    figures = _choices(parts.get("figures"), FIGURES) or ("curves",)
    measures = _choices(parts.get("measures"), MEASURES) or ("accuracy",)
    panels = _axis(parts.get("panels"), grid)
    return Plot(figures, panels, _axis(parts.get("x"), grid), measures)


def _choices(entry: YamlValue | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of a list that must be among some."""
    if entry is None:
        return ()
    for text in entry.texts():
        if text not in allowed:
            raise entry.error(
                f"{entry.key} must be of {', '.join(allowed)}, got {text!r}."
            )
    return tuple(entry.texts())


def _axis(entry: YamlValue | None, grid: Grid) -> str | None:
    if entry is None:
        return None
    if entry.text() not in grid.axes:
        raise entry.must_be(f"one of the axes ({', '.join(grid.axes)})")
    return entry.text()


def _target(entry: YamlValue | None, runs: tuple[Run, ...]) -> Target | None:
    if entry is None:
        return None
    parts = entry.mapping(("accuracy", "baseline"))
    for key in ("accuracy", "baseline"):
        if key not in parts:
            raise entry.error(f"target.{key} is missing.")
    baseline, labels = parts["baseline"], {curve_of(run) for run in runs}
    if baseline.text() not in labels:
        raise baseline.must_be(f"one of the curves ({'; '.join(sorted(labels))})")
    accuracy = parts["accuracy"]
    values = accuracy.items() if isinstance(accuracy.value, list) else [accuracy]
    return Target(tuple(value.share() for value in values), baseline.text())


def _kernel(entry: YamlValue | None) -> Kernel | None:
    if entry is None:
        return None
    parts = entry.mapping(("per-class", "dims", "seeds"))
    for key in ("per-class", "dims", "seeds"):
        if key not in parts:
            raise entry.error(f"kernel.{key} is missing.")
    dims = tuple(value.whole() for value in parts["dims"].items())
    return Kernel(parts["per-class"].whole(), dims, parts["seeds"].whole())


def _coupons(entry: YamlValue | None) -> Coupons | None:
    if entry is None:
        return None
    keys = ("federations", "clients-per-round", "shares", "simulations")
    parts = entry.mapping(keys)
    for key in keys:
        if key not in parts:
            raise entry.error(f"coupons.{key} is missing.")
    federations = parts["federations"].mapping()
    per_round = tuple(each.whole() for each in parts["clients-per-round"].items())
    return Coupons(
        {name: each.whole(max(per_round)) for name, each in federations.items()},
        per_round,
        tuple(_share_or_all(each) for each in parts["shares"].items()),
        parts["simulations"].whole(),
    )


def _share_or_all(entry: YamlValue) -> float:
    return 1.0 if entry.value == 1 else entry.share()


def curve_of(run: Run, *without: str) -> str:
    """Return the name of the curve that a run belongs to: all its labels but the seed.

    Parameters
    ----------
    run : Run
    *without : str
        Further axes that are told apart otherwise.
    """
    dropped = (SEED, *without)
    kept = [text for axis, text in run.labels.items() if axis not in dropped]
    return ", ".join(kept) or "all"


__all__ = ["CLIENTS", "Experiment", "ExperimentError", "Run", "curve_of", "load"]
