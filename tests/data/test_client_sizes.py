"""Client sizes from a CSV, and drawn ones."""

from pathlib import Path

import pytest

from fed3r_app.data.client_sizes import draw_client_sizes, read_client_sizes


def read(folder: Path, text: str) -> dict[str, int]:
    (folder / "sizes.csv").write_text(text)
    return read_client_sizes(folder / "sizes.csv")


def test_the_rows_test_and_missing_are_not_clients(tmp_path: Path) -> None:
    text = "client,num_images\ntest,100\nb,3\na,0\nmissing,7\n"
    assert list(read(tmp_path, text).items()) == [("b", 3), ("a", 0)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have the columns client, num_images in line 1, got nothing"),
        ("user,n\na,1\n", "must have the columns .* got user, n"),
        ("client,num_images\na,x\n", "line 2: num_images must be .* got 'x'"),
        ("client,num_images\na,-1\n", "line 2: num_images must be .* got '-1'"),
        ("client,num_images\na\n", "line 2: num_images must be .* got ''"),
        ("client,num_images\na,1\na,2\n", "must name each client once"),
        ("client,num_images\ntest,9\n", "at least one client with images, got none"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, text)


def test_drawn_sizes_have_about_the_mean_and_nobody_is_empty() -> None:
    sizes = draw_client_sizes(9275, 13.0, seed=0)
    assert len(sizes) == 9275
    assert sizes.min() >= 1
    assert sizes.mean() == pytest.approx(13.0, rel=0.05)
    assert (draw_client_sizes(9275, 13.0, seed=0) == sizes).all()
