"""The benchmarks run, and what does not depend on the machine is what it must be."""

import json
from functools import cache
from pathlib import Path

import pytest

from simulation.__main__ import main
from simulation.bench.command import find_data, run_benchmark
from simulation.bench.inputs import (
    FEDERATIONS,
    INATURALIST,
    describe_inputs,
    load_features,
)
from simulation.bench.result import Ratio, Result
from simulation.bench.upload import UPLOADS, Upload
from simulation.commands import BENCHMARKS


@cache
def quick(name: str) -> Result:
    """Run each benchmark at most once, without the data that few machines have."""
    return run_benchmark(name, quick=True)


def ratios(name: str, start: str) -> list[Ratio]:
    return [ratio for ratio in quick(name).ratios if ratio.name.startswith(start)]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_compares_ways_in_tables(name: str) -> None:
    found = quick(name)
    assert found.tables
    assert found.ratios
    for table in found.tables:
        assert len(table.rows) >= 2
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_factors_are_far_smaller_than_dense_matrices_for_every_federation() -> None:
    found = ratios("upload", "dense / factor")
    assert len(found) == 4 * len(FEDERATIONS)
    assert all(ratio.value > 3 for ratio in found)
    found = ratios("reference", "theirs / ours, MB sent")
    assert len(found) == 2
    assert all(ratio.value > 10 for ratio in found)


def test_half_precision_takes_half_the_bytes() -> None:
    found = ratios("upload", "float16 / ")
    assert found
    assert all(ratio.met for ratio in found)


def test_our_extraction_gives_the_features_of_the_plain_network() -> None:
    (difference,) = ratios("extract", "largest difference")
    assert difference.at_most
    assert difference.met


@pytest.mark.parametrize("upload", UPLOADS, ids=lambda upload: upload.name)
def test_the_size_of_a_record_follows_from_its_numbers_of_images_and_classes(
    upload: Upload,
) -> None:
    for shape in ((64, 40), (300, 120)):
        for client in ((1, 1), (13, 13), (13, 1), (120, 40)):  # images, classes
            counted = upload.total_bytes(*shape, [client, client])
            assert counted == 2 * upload.real_bytes(*shape, *client)


def test_sizes_without_data_have_the_published_number_and_mean() -> None:
    for federation in FEDERATIONS:
        sizes = federation.sizes(None)
        assert len(sizes) == federation.num_clients
        assert sizes.min() >= 1
        assert sizes.mean() == pytest.approx(federation.mean_size, rel=0.1)


def test_sizes_are_read_without_rows_that_are_no_clients(tmp_path: Path) -> None:
    folder = tmp_path / "client_sizes"
    folder.mkdir()
    text = "client,num_images\ntest,9\na,3\nmissing,8\nb,4\n"
    (folder / f"{INATURALIST.name}.csv").write_text(text)
    assert INATURALIST.sizes(tmp_path).tolist() == [3, 4]


def test_features_without_data_are_drawn() -> None:
    features = load_features(None, limit=50)
    assert features.Z.shape == (50, 1280)


def test_a_folder_of_data_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--data must be a folder"):
        find_data(tmp_path / "nowhere")


def test_a_benchmark_that_is_not_known_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "teleport"]) == 2
    assert "teleport" in capsys.readouterr().err


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "secagg", "--quick", "--data", str(tmp_path)]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert "drop out" in capsys.readouterr().out
    saved = json.loads((tmp_path / "secagg.json").read_text())
    assert saved["benchmark"] == "secagg"
    assert saved["quick"] is True
    assert saved["machine"]["threads"] >= 1
    assert len(saved["tables"][0]["rows"]) == 3


def test_a_ratio_says_whether_it_is_met() -> None:
    assert Ratio("more", 3.0, 2.0).met
    assert Ratio("free", 3.0).met is None
    result = Result()
    result.ratio("less", 3.0, 2.0, at_most=True)
    assert not result.ratios[0].met
    assert "NO" in str(result)


def test_stand_ins_are_named_also_beside_real_files(tmp_path: Path) -> None:
    sizes = tmp_path / "client_sizes"
    sizes.mkdir()
    for federation in FEDERATIONS:
        assert "client sizes are log-normal" in describe_inputs(tmp_path)
        (sizes / f"{federation.name}.csv").write_text("client,num_images\na,3\n")
    note = describe_inputs(tmp_path)
    assert "client sizes are" not in note
    assert "features are drawn" in note
    assert "images are the digits" in note
