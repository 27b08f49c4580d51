"""The outcome of a run as a table, and numbers in units that people read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fed3r_app.core.names import METHODS
from fed3r_app.words import first_names, plural

Values = Mapping[str, object]
HEADS_NOTE = "All are from the same statistics, and none was chosen by these numbers."
_MAX_LISTED = 8


def summary_table(summary: Values) -> str:
    """Return the outcome of a run as aligned lines."""
    known = summary_rows(summary)
    width = max((len(label) for label, _ in known), default=0)
    lines = (f"{label:<{width}}  {text}" for label, text in known)
    return "\n".join(lines) + _heads_table(summary)


def summary_rows(summary: Values) -> list[tuple[str, str]]:
    """Return the outcome of a run, label by label; what is not known has no row."""
    rows = [
        (label, what(summary) if callable(what) else _text(summary, what, form))
        for label, what, form in _ROWS
    ]
    return [(label, text) for label, text in rows if text]


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


def number_of(values: Values, key: str) -> float | None:
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


def _text(summary: Values, key: str, form: Callable[[float], str] | None) -> str:
    """Return a number in some form, some names, or a word; "" for what is not known."""
    value, number = summary.get(key), number_of(summary, key)
    if isinstance(value, (list, tuple)) and value:
        return f"{len(value)}: {first_names(value, _MAX_LISTED)}"
    if form and number is not None:
        return form(number)
    return "" if form else str(value or "")


def _clients(summary: Values) -> str:
    counted = number_of(summary, "clients_counted")
    clients = number_of(summary, "clients")
    unknown = counted is None or clients is None
    return "" if unknown else f"{counted:,.0f} of {clients:,.0f}"


def _client_accuracy(summary: Values) -> str:
    """Return the accuracy at the clients, and of how many it is if not of all."""
    accuracy = _text(summary, "client_accuracy", format_percent)
    done = number_of(summary, "clients_evaluated") or 0
    missing = summary.get("not_evaluated")
    if not accuracy or not isinstance(missing, list) or not missing:
        return accuracy
    asked = plural(int(done) + len(missing), "client")
    return f"{accuracy} on {done:,.0f} of {asked}"


def _unreadable(summary: Values) -> str:
    """Return how many images could not be read; "" if all could."""
    train = number_of(summary, "unreadable_images") or 0
    test = number_of(summary, "unreadable_test_images") or 0
    named = ((train, "at clients, listed in their logs"), (test, "of the test set"))
    return ", ".join(f"{number:,.0f} {where}" for number, where in named if number)


def _held_out(summary: Values) -> str:
    """Return how many classes of clients have no training images left."""
    number = number_of(summary, "held_out_classes")
    return f"{number:,.0f} of clients, named in their logs" if number else ""


def _privacy(summary: Values) -> str:
    privacy = summary.get("differential_privacy")
    if not isinstance(privacy, dict):
        return ""
    return (
        "epsilon {epsilon:g}, delta {delta:g} ({neighbours}), noise with standard "
        "deviation {sigma:.4g}"
    ).format(**privacy)


def _upload(summary: Values) -> str:
    """Return the bytes sent, and how many times less than the paper's they are."""
    sent = number_of(summary, "upload_bytes")
    dense = number_of(summary, "paper_upload_bytes")
    if sent is None:
        return ""
    if not dense or not sent:
        return format_bytes(sent)
    less, more = dense / sent, sent / dense
    if 0.99 < less < 1.01:
        return f"{format_bytes(sent)}, as much as by the paper's formula"
    change = f"{less:,.3g} times less" if less >= 1 else f"{more:.3g} times more"
    return f"{format_bytes(sent)}, {change} than the paper's {format_bytes(dense)}"


def _fine_tuning(summary: Values) -> str:
    """Return what was fine-tuned and how."""
    if not summary.get("finetune"):
        return ""
    how = f"{summary['finetune']} with {summary.get('optimizer')}"
    temperature = number_of(summary, "temperature")
    return how if temperature is None else f"{how}, temperature {temperature:.3g}"


def head_rows(summary: Values) -> list[tuple[str, str, str]]:
    """Return what each head gets from the same statistics, below a row of labels.

    Empty if that is not known.
    """
    heads = summary.get("heads")
    if not isinstance(heads, dict):
        return []
    number = number_of(summary, "test_images")
    where = f"{number:,.0f} test images" if number else "the test images"
    rows = [("head", "method", f"accuracy on {where}")]
    for method, accuracy in heads.items():
        head = METHODS[method].head if method in METHODS else ""
        error = f" ± {_standard_error(accuracy, number):.1f}" if number else ""
        shown = format_percent(accuracy) + error
        is_model = " (the run's method)" if method == summary.get("method") else ""
        rows.append((head.replace("-", " "), method, shown + is_model))
    return rows


def _standard_error(accuracy: float, number: float) -> float:
    """Return the standard error of an accuracy on so many images, in percent.

    As if two more had been right and two wrong (Agresti and Coull): 16 of 16 right is
    no certainty.
    """
    share = (accuracy * number + 2) / (number + 4)
    return 100 * math.sqrt(share * (1 - share) / (number + 4))


def _heads_table(summary: Values) -> str:
    """Return the heads as aligned lines; "" if unknown."""
    rows = head_rows(summary)
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
    lines = [f"{h:<{widths[0]}}  {m:<{widths[1]}}  {text}" for h, m, text in rows]
    return "\n".join(["", "", *lines, HEADS_NOTE])


_COUNT = "{:,.0f}".format
# Label, key of the summary and form of a number; or what makes a text of the summary.
_ROWS: tuple[
    tuple[str, str | Callable[[Values], str], Callable[[float], str] | None], ...
] = (
    ("method", "method", None),
    ("fine-tuning", _fine_tuning, None),
    ("data set", "dataset", None),
    ("status", "status", None),
    ("accuracy", "accuracy", format_percent),
    ("model kept", "model", None),
    ("accuracy before fine-tuning", "closed_form_accuracy", format_percent),
    ("of the fine-tuned softmax", "softmax_accuracy", format_percent),
    ("of Fed3R on its features", "probe_accuracy", format_percent),
    ("fine-tuning ended early", "stopped", None),
    ("accuracy at clients", _client_accuracy, None),
    ("not evaluated", "not_evaluated", None),
    ("clients counted", _clients, None),
    ("missing clients", "missing_clients", None),
    ("forgotten clients", "forgotten_clients", None),
    ("absent classes", "absent_classes", None),
    ("training images", "num_samples", _COUNT),
    ("unreadable images", _unreadable, None),
    ("classes held out whole", _held_out, None),
    ("classes", "num_classes", _COUNT),
    ("features", "feature_dim", _COUNT),
    ("ridge lambda", "ridge_lambda", "{:.4g}".format),
    ("privacy", _privacy, None),
    ("rounds", "rounds", _COUNT),
    ("uploaded", _upload, None),
    ("downloaded", "download_bytes", format_bytes),
    ("time", "seconds", format_seconds),
)
