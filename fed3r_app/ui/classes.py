"""The test images of a run by class and predicted class, as tables."""

from __future__ import annotations

from collections import defaultdict

from fed3r_app.runs.report import format_percent
from fed3r_app.ui.results import RunFiles

_MOST_CONFUSED = 14  # pairs of classes
_LARGEST_MATRIX = 200  # classes: on a screen each still has its pixels


def classes_view(run: RunFiles) -> dict[str, object]:
    """Return what became of the test images of each class; all empty if unknown."""
    names, counts = run.confusion()
    images: dict[int, int] = defaultdict(int)
    predicted: dict[int, int] = defaultdict(int)
    correct: dict[int, int] = defaultdict(int)
    wrong: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for truth, guess, number in counts:
        images[truth] += number
        predicted[guess] += number
        if truth == guess:
            correct[truth] += number
        else:
            wrong[truth].append((number, guess))
    pairs = [(n, truth, guess) for truth in wrong for n, guess in wrong[truth]]
    most = sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))[:_MOST_CONFUSED]
    return {
        "names": names,
        "counts": counts if len(names) <= _LARGEST_MATRIX else [],
        "rows": [
            {
                "name": name,
                "images": images[c],
                "correct": correct[c],
                "recall": _share(correct[c], images[c]),
                "recall_text": _text(correct[c], images[c]),
                "precision": _share(correct[c], predicted[c]),
                "precision_text": _text(correct[c], predicted[c]),
                "taken_for": names[max(wrong[c], key=_first)[1]] if c in wrong else "",
            }
            for c, name in enumerate(names)
        ],
        "confused": [
            {"truth": names[truth], "guess": names[guess], "images": number}
            for number, truth, guess in most
        ],
    }


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _text(part: int, whole: int) -> str:
    return format_percent(part / whole) if whole else ""
