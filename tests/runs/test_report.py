"""The table and the picture of a run."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fed3r_app.runs.curves import plot_curves
from fed3r_app.runs.report import (
    format_bytes,
    format_percent,
    format_seconds,
    summary_table,
)
from tests.harness.full_disk import KeepsOld

SUMMARY = {
    "method": "fed3r",
    "dataset": "digits",
    "accuracy": 0.9612,
    "rounds": 4,
    "clients": 1040,
    "clients_counted": 1038,
    "ridge_lambda": 0.01234567,
    "upload_bytes": 2_200_000,
    "download_bytes": 3456,
    "paper_upload_bytes": 260_000_000,
    "seconds": 75.3,
}


def make_metrics(rounds: Any, measured: Any = lambda number: True) -> Any:
    return [
        {
            "round": number,
            "upload_bytes": 290_000 * number,
            "paper_upload_bytes": 66_000_000 * number,
            "flops_per_client": 3e9 * number / rounds,
            **({"accuracy": 1 - 0.5**number} if measured(number) else {}),
        }
        for number in range(1, rounds + 1)
    ]


def pixels(path: Path) -> Any:
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (format_bytes, {0: "0 B", 999: "999 B", 1000: "1 kB", 999_499: "999 kB"}),
        (format_bytes, {999_500: "1 MB", 1_254_000: "1.25 MB", 10**19: "1e+04 PB"}),
        (format_bytes, {117_912_704_000: "118 GB"}),
        (format_seconds, {0.04: "0.0 s", 4.25: "4.2 s", 59.96: "1 min 00 s"}),
        (format_seconds, {75.3: "1 min 15 s", 3599.7: "1 h 00 min"}),
        (format_seconds, {7621: "2 h 07 min"}),
        (format_percent, {0.9612: "96.1 %"}),
    ],
)
def test_numbers_read_well(form: Any, texts: Any) -> None:
    assert {number: form(number) for number in texts} == texts


def test_the_table_holds_what_matters_in_aligned_columns() -> None:
    table = summary_table(SUMMARY)
    rows = dict(line.split("  ", 1) for line in table.splitlines())
    assert {label: text.strip() for label, text in rows.items()} == {
        "method": "fed3r",
        "data set": "digits",
        "accuracy": "96.1 %",
        "clients counted": "1,038 of 1,040",
        "ridge lambda": "0.01235",
        "rounds": "4",
        "uploaded": "2.2 MB, 118 times less than the paper's 260 MB",
        "downloaded": "3.46 kB",
        "time": "1 min 15 s",
    }
    starts = {line.index(line.split("  ")[-1].strip()) for line in table.splitlines()}
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("summary", "table"),
    [
        (
            {"upload_bytes": 520_000_000, "paper_upload_bytes": 260_000_000},
            "uploaded  520 MB, 2 times more than the paper's 260 MB",
        ),
        ({}, ""),
        ({"accuracy": None, "missing_clients": []}, ""),
        ({"accuracy": 0.0, "upload_bytes": 0}, "accuracy  0.0 %\nuploaded  0 B"),
    ],
)
def test_what_is_known_has_a_line(summary: Any, table: str) -> None:
    assert summary_table(summary) == table


def test_what_is_missing_is_listed_and_long_lists_are_cut() -> None:
    summary = {"missing_clients": ["a", "b"], "absent_classes": list(range(30))}
    table = summary_table({**SUMMARY, **summary, "status": "partial"})
    assert "missing clients  2: a, b" in table
    assert "absent classes   30: 0, 1, 2, 3, 4, 5, 6, 7 and 22 more" in table
    assert "status           partial" in table


def test_heads_of_the_same_statistics_are_a_table_at_the_end() -> None:
    heads = {"fed3r": 0.746, "fedncm": 0.764, "lda": 0.781}
    table = summary_table({**SUMMARY, "heads": heads, "test_images": 661})
    assert table.split("\n\n")[1] == (
        "head         method  accuracy on 661 test images\n"
        "ridge        fed3r   74.6 % ± 1.7 (the run's method)\n"
        "class means  fedncm  76.4 % ± 1.7\n"
        "lda          lda     78.1 % ± 1.6\n"
        "All are from the same statistics, and none was chosen by these numbers."
    )
    few = summary_table({"heads": {"fed3r": 1.0}, "test_images": 16})
    assert "100.0 % ± 6.7" in few  # all right of few images is no certainty
    table = summary_table({"heads": heads})  # of an earlier version
    assert "class means  fedncm  76.4 %\n" in table


@pytest.mark.parametrize("rounds", [1, 4, 300])
def test_the_picture_is_a_png_with_ink_in_all_three_panels(
    tmp_path: Path, rounds: Any
) -> None:
    path = tmp_path / "curves.png"
    plot_curves(make_metrics(rounds), path, "fed3r on digits")
    image = pixels(path)
    height, width, _ = image.shape
    assert 1000 <= width <= 3000 and 400 <= height <= 1500
    blue = (image[:, :, 2] > image[:, :, 0].astype(int) + 80).any(axis=0)
    for panel in np.array_split(blue, 3):
        assert panel.any()
    assert list(tmp_path.iterdir()) == [path]


def test_lines_without_accuracy_are_passed_over(tmp_path: Path) -> None:
    metrics = make_metrics(9, measured=lambda number: number % 3 == 0)
    plot_curves(metrics, tmp_path / "all.png", "t")
    measured = [line for line in metrics if "accuracy" in line]
    plot_curves(measured, tmp_path / "measured.png", "t")
    assert np.array_equal(
        pixels(tmp_path / "all.png"), pixels(tmp_path / "measured.png")
    )


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        make_metrics(3, measured=lambda number: False),
        [{"accuracy": 0.5}],
        [{"round": 1, "accuracy": 0.0, "upload_bytes": 0, "flops_per_client": 0.0}],
        [{"round": 1, "accuracy": None, "upload_bytes": None}],
        [{**line, "accuracy": 1.0} for line in make_metrics(2)],
    ],
)
@pytest.mark.filterwarnings("error")
def test_odd_metrics_make_a_picture_too(tmp_path: Path, metrics: Any) -> None:
    plot_curves(metrics, tmp_path / "curves.png", "t")
    assert pixels(tmp_path / "curves.png").size


def test_drawing_leaves_no_global_state(tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules
    plot_curves(make_metrics(2), tmp_path / "curves.png", "t")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_failed_write_leaves_the_picture_before(
    tmp_path: Path, keeps_old: KeepsOld
) -> None:
    path = tmp_path / "curves.png"
    plot_curves(make_metrics(2), path, "t")
    keeps_old(path, lambda: plot_curves(make_metrics(5), path, "t"))


def ink(path: Path, colour: str) -> Any:
    """Return in which of the three panels a colour is."""
    image = pixels(path).astype(int)
    red, green, blue = (image[:, :, place] for place in range(3))
    found = {"blue": blue > red + 80, "red": red > green + 80}[colour]
    return [bool(panel.any()) for panel in np.array_split(found[:, :], 3, axis=1)]


AT_CLIENTS = {
    **{"accuracy": 0.961, "client_accuracy": 0.961, "client_test_images": 116},
    **{"rounds": 1, "upload_bytes": 4e5, "flops_per_client": 2e9},
}


def test_what_only_the_clients_measured_is_a_point_in_all_three_panels(
    tmp_path: Path,
) -> None:
    metrics = make_metrics(1, measured=lambda number: False)
    plot_curves(metrics, tmp_path / "curves.png", "t", AT_CLIENTS)
    assert ink(tmp_path / "curves.png", "blue") == [True] * 3
    plot_curves(metrics, tmp_path / "curves.svg", "t", AT_CLIENTS)
    drawn = (tmp_path / "curves.svg").read_text()
    assert "<!-- on the clients' test images -->" in drawn
    assert "<!-- 96.1 % -->" in drawn and "not measured" not in drawn


def test_what_the_clients_measured_stands_beside_the_curve(tmp_path: Path) -> None:
    summary = {**AT_CLIENTS, "client_test_images": None}
    plot_curves(make_metrics(4), tmp_path / "curves.png", "t", summary)
    assert ink(tmp_path / "curves.png", "red") == [True] * 3
    plot_curves(make_metrics(4), tmp_path / "curves.svg", "t", summary)
    drawn = (tmp_path / "curves.svg").read_text()
    assert "<!-- on the clients' training images: 96.1 % -->" in drawn


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_numbers_are_the_same_vectors(
    tmp_path: Path, form: str, begins: bytes
) -> None:
    drawn = []
    for name in "ab":
        plot_curves(make_metrics(4), tmp_path / f"{name}.{form}", "t")
        drawn.append((tmp_path / f"{name}.{form}").read_bytes())
    assert drawn[0] == drawn[1] and drawn[0].startswith(begins)
    with pytest.raises(ValueError, match=r"end with \.png, \.svg, \.pdf, got 'a\.gif'"):
        plot_curves(make_metrics(4), tmp_path / "a.gif", "t")
