"""What a person sees of a run: a table of its outcome and a picture of its course."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.run_directory import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, object]

_MAX_LISTED = 8
_BLUE, _GREY = "#1f6fb4", "#8a8a8a"


def summary_table(summary: Values) -> str:
    """Return the outcome of a run as aligned lines; what is not known has no line."""
    rows = [(label, line(summary)) for label, line in _ROWS]
    known = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in known), default=0)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in known)


def format_bytes(number: float) -> str:
    """Return a number of bytes with three digits: 1.25 MB."""
    return _scaled(number, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_flops(number: float) -> str:
    """Return a number of operations with three digits: 1.25 G."""
    return _scaled(number, ("", "k", "M", "G", "T", "P"))


def format_seconds(seconds: float) -> str:
    """Return a duration: 4.2 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def format_percent(share: float) -> str:
    """Return a share of 1 in percent, with one decimal as the paper has."""
    return f"{100 * share:.1f} %"


def import_matplotlib() -> None:
    """Load what ``plot_curves`` needs, ahead of time."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


def plot_curves(metrics: Sequence[Values], path: Path, title: str) -> None:
    """Write a PNG of the accuracy against rounds, uploaded bytes and FLOPs.

    Parameters
    ----------
    metrics : sequence of mappings
        The lines of metrics.jsonl; bytes and FLOPs are those up to that round. Lines
        without an accuracy are passed over.
    path : Path
        File to write or replace.
    title : str
        Heading of the picture.
    """
    # The object interface: no global state, no display, safe in any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    measured = [line for line in metrics if _number(line, "accuracy") is not None]
    if measured:
        _draw_panels(figure, measured)
    else:
        figure.text(0.5, 0.5, "The accuracy was not measured.", ha="center")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_atomically(path, image.getvalue())


def _draw_panels(figure: Figure, metrics: Sequence[Values]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    rounds, sizes, flops = figure.subplots(1, 3, sharey=True)
    _draw_accuracy(rounds, metrics, "round", _BLUE)
    _mark_last(rounds, metrics)
    rounds.set(xlabel="rounds", ylabel="accuracy", xlim=(0, None))
    rounds.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    best = max(_number(line, "accuracy") or 0.0 for line in metrics)
    rounds.set_ylim(0, 1.1 * best or 1.0)
    rounds.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    rounds.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    _draw_bytes(sizes, metrics)
    _draw_accuracy(flops, metrics, "flops_per_client", _BLUE)
    flops.set(xlabel="average FLOPs per client", xlim=(0, None))
    flops.xaxis.set_major_locator(MaxNLocator(5))
    flops.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_flops(x)))


def _draw_bytes(axes: Axes, metrics: Sequence[Values]) -> None:
    """Draw the accuracy against the bytes sent, and against those of the paper."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    sent = _draw_accuracy(axes, metrics, "upload_bytes", _BLUE, "as sent")
    dense = _draw_accuracy(
        axes, metrics, "paper_upload_bytes", _GREY, "as the paper's dense matrices"
    )
    axes.set_xlabel("bytes uploaded by all clients")
    values = [value for value in (*sent, *dense) if value > 0]
    # Orders of magnitude apart, the smaller values would stick to the axis.
    if values and max(values) > 30 * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x)))
    # Above the panel, where it can't cover a curve.
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=9, frameon=False
    )


def _draw_accuracy(
    axes: Axes, metrics: Sequence[Values], key: str, color: str, label: str = ""
) -> list[float]:
    """Draw the accuracy against a quantity, and return the quantity's values."""
    lines = [line for line in metrics if _number(line, key) is not None]
    x = [_number(line, key) or 0.0 for line in lines]
    y = [_number(line, "accuracy") or 0.0 for line in lines]
    # Few points are shown one by one; a single point would have no line at all.
    marker = "o" if len(x) <= 30 else ""
    axes.plot(x, y, marker=marker, markersize=4, color=color, label=label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return x


def _mark_last(axes: Axes, metrics: Sequence[Values]) -> None:
    """Write the last accuracy above its point."""
    x, y = _number(metrics[-1], "round"), _number(metrics[-1], "accuracy")
    if x is not None and y is not None:
        text, above = format_percent(y), (0, 6)
        axes.annotate(
            text, (x, y), above, textcoords="offset points", ha="right", color=_BLUE
        )


def _number(values: Values, key: str) -> float | None:
    """Return a finite number, or None where there is none of that name."""
    value = values.get(key)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def _scaled(number: float, units: Sequence[str]) -> str:
    """Return a number with three digits and the unit, each 1000 times the last."""
    place = 0
    while abs(number) >= 999.5 and place < len(units) - 1:
        number /= 1000
        place += 1
    return f"{number:.3g} {units[place]}".strip()


def _formatted(key: str, form: Callable[[float], str]) -> Callable[[Values], str]:
    """Return what turns a summary into the text of one of its numbers."""

    def text(summary: Values) -> str:
        value = _number(summary, key)
        return "" if value is None else form(value)

    return text


def _listed(key: str) -> Callable[[Values], str]:
    """Return what turns a summary into the number and the first of some names."""

    def text(summary: Values) -> str:
        names = summary.get(key)
        if not isinstance(names, (list, tuple)) or not names:
            return ""
        more = ", …" if len(names) > _MAX_LISTED else ""
        return f"{len(names)}: {', '.join(map(str, names[:_MAX_LISTED]))}{more}"

    return text


def _plain(key: str) -> Callable[[Values], str]:
    return lambda summary: str(summary.get(key) or "")


def _clients(summary: Values) -> str:
    counted, clients = _number(summary, "clients_counted"), _number(summary, "clients")
    if counted is None or clients is None:
        return ""
    return f"{counted:,.0f} of {clients:,.0f}"


def _privacy(summary: Values) -> str:
    privacy = summary.get("differential_privacy")
    if not isinstance(privacy, dict):
        return ""
    return (
        f"epsilon {privacy['epsilon']:g}, delta {privacy['delta']:g} "
        f"({privacy['neighbours']}), noise of deviation {privacy['sigma']:.4g}"
    )


def _upload(summary: Values) -> str:
    """Return the bytes sent, and how many times less than the paper's they are."""
    sent = _number(summary, "upload_bytes")
    dense = _number(summary, "paper_upload_bytes")
    if sent is None:
        return ""
    if not dense or not sent:
        return format_bytes(sent)
    factor = dense / sent
    if 0.99 < factor < 1.01:
        return f"{format_bytes(sent)}, as much as by the paper's formula"
    change = (
        f"{factor:,.3g} times less" if factor >= 1 else f"{1 / factor:.3g} times more"
    )
    return f"{format_bytes(sent)}, {change} than the paper's {format_bytes(dense)}"


def _fine_tuning(summary: Values) -> str:
    """Return what was fine-tuned and how."""
    if not summary.get("finetune"):
        return ""
    how = f"{summary['finetune']} with {summary.get('optimizer')}"
    temperature = _number(summary, "temperature")
    return how if temperature is None else f"{how}, temperature {temperature:.3g}"


def _best(summary: Values) -> str:
    best, number = _number(summary, "best_accuracy"), _number(summary, "best_round")
    if best is None or number is None:
        return ""
    return f"{format_percent(best)} after round {number:.0f}"


_ROWS: tuple[tuple[str, Callable[[Values], str]], ...] = (
    ("method", _plain("method")),
    ("fine-tuning", _fine_tuning),
    ("data set", _plain("dataset")),
    ("status", _plain("status")),
    ("accuracy", _formatted("accuracy", format_percent)),
    ("best on test images", _best),
    ("accuracy before fine-tuning", _formatted("closed_form_accuracy", format_percent)),
    ("accuracy of Fed3R after it", _formatted("probe_accuracy", format_percent)),
    ("accuracy at clients", _formatted("client_accuracy", format_percent)),
    ("clients counted", _clients),
    ("missing clients", _listed("missing_clients")),
    ("forgotten clients", _listed("forgotten_clients")),
    ("absent classes", _listed("absent_classes")),
    ("training images", _formatted("num_samples", "{:,.0f}".format)),
    ("classes", _formatted("num_classes", "{:,.0f}".format)),
    ("features", _formatted("feature_dim", "{:,.0f}".format)),
    ("ridge lambda", _formatted("ridge_lambda", "{:.4g}".format)),
    ("privacy", _privacy),
    ("rounds", _formatted("rounds", "{:,.0f}".format)),
    ("uploaded", _upload),
    ("downloaded", _formatted("download_bytes", format_bytes)),
    ("time", _formatted("seconds", format_seconds)),
)
