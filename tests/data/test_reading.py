"""How files become pixels: what each of them should look like, or why it can't."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fed3r_app.data import reading as reading_module
from fed3r_app.data.reading import V0_1_READING, Reading, UnreadableImage
from tests.harness.awkward import BAD, GREY, SAME, huge_png, save, turned, twelve_bits

NEW, OLD = Reading(), Reading(V0_1_READING)


@pytest.fixture(autouse=True)
def _notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every test see the notes that come once a process."""
    monkeypatch.setattr(reading_module, "_NOTED", set())


def read(content: bytes, reading: Reading = NEW) -> Image.Image:
    return reading.read(io.BytesIO(content), "x.png")


def grey(content: bytes, reading: Reading = NEW) -> Any:
    return np.asarray(read(content, reading).convert("L"))


@pytest.mark.parametrize("name", SAME)
def test_a_picture_is_the_same_however_it_is_saved(name: str) -> None:
    image = read(SAME[name]())
    assert image.mode in ("RGB", "L")
    assert np.array_equal(np.asarray(image.convert("L")), GREY)


@pytest.mark.parametrize("name", BAD)
def test_what_can_t_be_read_is_refused_with_the_reason(name: str) -> None:
    content, reason = BAD[name]
    with pytest.raises(UnreadableImage, match=f"x.png must be .*({reason})"):
        read(content())


def test_a_jpeg_is_turned_upright() -> None:
    got = grey(turned(6, "jpeg", quality=100)).astype(int)
    assert np.abs(got - GREY).max() <= 3
    assert (
        np.abs(grey(turned(6, "jpeg", quality=100), OLD) - GREY.astype(int)).max() > 9
    )


def test_twelve_bits_in_sixteen_are_dark_or_spread_on_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    in_range = grey(twelve_bits())
    assert np.array_equal(in_range, np.rint(np.rint(GREY / 255 * 4095) / 257))
    assert "uses little of its type's range (4095 at most)" in caplog.text
    assert 'intensity="1-99"' in caplog.text
    assert np.array_equal(grey(twelve_bits(), Reading(intensity="0-100")), GREY)


def test_percentiles_take_any_values_and_cut_the_ends() -> None:
    values = np.linspace(-3000.0, 5000.0, 10_000).reshape(100, 100)
    content = save(Image.fromarray(values.astype(np.float32)), "tiff")
    got = grey(content, Reading(intensity="10-90"))
    assert np.isclose((got == 0).mean(), 0.1, atol=0.01)
    assert np.isclose((got == 255).mean(), 0.1, atol=0.01)
    assert abs(int(got[50, 0]) - 127) <= 2
    flat = save(Image.new("F", (8, 8), 7.0), "tiff")
    assert len(set(grey(flat, Reading(intensity="1-99")).reshape(-1))) == 1


@pytest.mark.parametrize("text", ["1-", "99-1", "5-5", "0-101", "full", "-1-5", ""])
def test_an_intensity_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match='intensity must be "range" or two percentil'):
        Reading(intensity=text)


def test_several_pages_are_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        read(SAME["pages.tif"]())
    assert caplog.text.count("several pages, of which the first is read") == 1


def test_version_one_reads_as_it_did() -> None:
    for name in ("exif 6.png", "rgba.png", "grey 16 bits.png", "pages.tif"):
        content = SAME[name]()
        with Image.open(io.BytesIO(content)) as image:
            expected = np.asarray(image.convert("RGB"))
        assert np.array_equal(np.asarray(read(content, OLD)), expected)
    assert read(SAME["grey 16 bits.png"](), OLD).getextrema()[0] == (0, 255)


def test_a_large_jpeg_is_decoded_at_a_fraction() -> None:
    image = Image.new("L", (10_000, 6_000), 90)
    image.paste(200, (0, 0, 10_000, 3_000))
    got = read(save(image, "jpeg"))
    assert got.size == (5_000, 3_000)
    assert (got.getpixel((9, 9)), got.getpixel((9, 2_900))) == (200, 90)


def test_pillows_limit_is_not_for_jpegs_which_can_be_decoded_at_a_fraction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = Image.new("L", (80, 60), 90)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)
    assert read(save(image, "jpeg")).size == (80, 60)
    monkeypatch.setattr(reading_module, "_MAX_PIXELS", 2_000)
    assert read(save(image, "jpeg")).size == (40, 30)
    for kind in ("png", "tiff", "gif"):
        with pytest.raises(UnreadableImage, match="more than 0 megapixels, of which"):
            read(save(image, kind))
    assert Image.MAX_IMAGE_PIXELS == 2_000


@pytest.mark.skipif(sys.platform != "linux", reason="counts kilobytes as Linux does")
def test_a_huge_picture_takes_little_memory() -> None:
    script = """
import io, resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from fed3r_app.data.reading import Reading, UnreadableImage
image = Image.new("RGB", (14000, 12000), (9, 90, 200))
file = io.BytesIO(); image.save(file, sys.argv[1]); del image
content = file.getvalue()
with open("/proc/self/clear_refs", "w") as f: f.write("5")
def peak():
    with open("/proc/self/status") as status:
        return [int(line.split()[1]) for line in status if line.startswith("VmHWM")][0]
before = peak()
def read(_):
    try:
        return Reading().read(io.BytesIO(content), "x").size
    except UnreadableImage as error:
        return str(error)
with ThreadPoolExecutor(4) as pool:
    print(*set(pool.map(read, range(4))), sep="; ")
print((peak() - before) // 1024)
"""
    for kind, said in (("png", "168 megapixels"), ("jpeg", "(7000, 6000)")):
        command = [sys.executable, "-c", script, kind]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        what, megabytes = run.stdout.splitlines()
        assert said in what
        assert int(megabytes) < 600


def test_a_bomb_is_refused_before_anything_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail())
    with pytest.raises(UnreadableImage, match="168 megapixels"):
        read(huge_png(14000, 12000))
    with pytest.raises(UnreadableImage, match="more than 179 megapixels"):
        read(huge_png(30000, 30000))
