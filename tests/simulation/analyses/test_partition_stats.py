"""``python -m simulation federation``: what it says, and its picture."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simulation.__main__ import main
from simulation.analyses.partition_plot import plot
from simulation.analyses.partition_stats import Federation, describe, load_federation

Show = Callable[..., str]


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Call the command; return what it said. It draws a picture unless it fails."""

    def show(*arguments: str, fails: bool = False) -> str:
        path = tmp_path / "pictures" / "a.png"
        assert main(["federation", *arguments, "--output", str(path)]) == int(fails)
        said = capsys.readouterr()
        if fails:
            assert not path.exists()
        else:
            assert f"Picture: {path}" in said.out
            assert_is_a_picture(path)
        return said.out + said.err

    return show


def assert_is_a_picture(path: Path) -> None:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert len(set(image.convert("L").tobytes())) > 10


def test_digits_by_class(show: Show) -> None:
    said = show("digits")
    assert "digits, by-class" in said
    assert "1,442, and 355 held out" in said
    assert "(client, class) pairs  10\n" in said


def test_a_dirichlet_split_with_options(show: Show) -> None:
    said = show(
        *("digits", "--partition", "dirichlet", "--alpha", "0.5"),
        *("--clients", "20", "--seed", "3"),
    )
    assert "digits, dirichlet, alpha = 0.5" in said
    again = load_federation("digits", "", "dirichlet", 0.5, 20, 3)
    assert f"{again.class_counts.sum()}" in said


def test_client_sizes_alone(show: Show, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("client,num_images\na,3\ntest,9\nb,0\nc,600\n")
    said = show(str(sizes))
    assert "3, 1 of them without images" in said
    assert "mean 201.0, median 3, 0 to 600" in said
    assert "not known" in said


def test_a_synthetic_federation_of_those_sizes(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("client,num_images\na,3\nb,0\nc,600\n")
    federation = load_federation("synthetic:classes=7", str(sizes))
    assert federation.sizes.tolist() == [3, 0, 600]
    assert federation.num_classes == 7
    assert federation.label_counts(np.array([2, 0])).sum(axis=1).tolist() == [600, 3]


def test_a_published_federation_needs_its_split_files_only(
    tmp_path: Path, show: Show
) -> None:
    (tmp_path / "federated_train_user_120k.csv").write_text(
        "user_id,image_id,class,label\nu1,a,0,x\nu1,b,1,y\nu2,c,1,y\nNA,d,0,x\n"
    )
    (tmp_path / "test.csv").write_text("image_id,class,label\ne,0,x\n")
    said = show("inaturalist-users-120k", "--data-path", str(tmp_path))
    assert "clients                2\n" in said
    assert "3, and 1 held out" in said
    assert "(client, class) pairs  3\n" in said


def test_many_clients_and_classes_fit_into_the_picture(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = [random.integers(1000, size=n) for n in random.integers(1, 20, size=400)]
    federation = Federation("many", 1000, labels)
    plot(federation, tmp_path / "many.png")
    assert_is_a_picture(tmp_path / "many.png")
    assert "400" in describe(federation)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mnist"], "dataset must be one of digits"),
        (["no.csv"], "NAME must be a data set or an existing CSV"),
        (["cifar100"], "data-path must name a folder"),
        (["digits", "--partition", "natural"], "has no natural clients"),
        (["digits", "--clients", "0"], "number of clients must be >= 1, got 0"),
        (["synthetic:colour=3"], "got 'colour=3'"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    show: Show, arguments: list[str], sentence: str
) -> None:
    said = show(*arguments, fails=True)
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
