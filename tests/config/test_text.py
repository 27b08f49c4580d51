"""Settings as people type them: understood, or refused in a sentence, never dropped."""

import json
from pathlib import Path

import pytest

from fed3r_app.config import Value
from fed3r_app.config.text import parse_settings, read_settings

FEDNCM = {"method": "fedncm", "alpha": 0.1}


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedncm", "alpha=0.1"],
        ["method", "=", "fedncm", "alpha", "=", "0.1"],  # method = "fedncm" alpha = 0.1
        ["method=", "fedncm", "alpha", "=0.1"],
        ['method="fedncm" alpha=0.1'],
        ["method = 'fedncm'  alpha = 0.1 "],
        ["method = fedncm alpha = 0.1"],
        ['method="fedncm"\n', "\talpha=1e-1"],
    ],
)
def test_quotation_marks_and_spaces_make_no_difference(words: list[str]) -> None:
    assert parse_settings(words) == FEDNCM


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], {}),
        (["labels="], {"labels": ""}),
        (["labels=", "method", "=", "lda"], {"labels": "", "method": "lda"}),
        (["labels= method=lda"], {"labels": "", "method": "lda"}),
        (["run-name=2024"], {"run-name": "2024"}),
        (["run-name=true"], {"run-name": "true"}),
        (["run-name", "=", "my run"], {"run-name": "my run"}),
        (["data-path=/my photos/a=b"], {"data-path": "/my photos/a=b"}),
        (["data-path = '/my alpha=1'"], {"data-path": "/my alpha=1"}),
        (
            ["dataset=synthetic:classes=3,clients=9"],
            {"dataset": "synthetic:classes=3,clients=9"},
        ),
        (["image-size=auto", "seed=7"], {"image-size": "auto", "seed": 7}),
        (["probe=true", "guard=false"], {"probe": True, "guard": False}),
        (["alpha", "=", "-1"], {"alpha": -1}),
        (['labels="a \\"b\\", c"'], {"labels": 'a "b", c'}),
    ],
)
def test_a_value_has_the_type_of_its_key(
    words: list[str], settings: dict[str, Value]
) -> None:
    found = parse_settings(words)
    assert found == settings
    assert list(map(type, found.values())) == list(map(type, settings.values()))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["metod=fedncm"], "'metod' is not known. Did you mean 'method'"),
        (["method=lda", "alpha", "0.1"], "got 'alpha 0.1'. Did you mean alpha=0.1?"),
        (["method=lda", "alpha 0.1 seed=3"], "Did you mean alpha=0.1?"),
        (['method="lda" alpha'], "key=value, got 'alpha'"),
        (['method="lda", seed=1'], "key=value, got ', seed=1'"),
        (["method=lda nonsense"], None),
        (["nonsense"], "key=value, got 'nonsense'"),
        (["= lda"], "key=value, got '= lda'"),
        (["results/config.json"], "Did you mean --config results/config.json?"),
        (["--method", "lda"], "Did you mean method="),
        (["--cleints", "9"], "got '--cleints'. Options are those of --help"),
        (["seed=1", "seed=1"], "seed must be given once, got 1 and 1"),
        (["seed=1 seed=2"], "seed must be given once, got 1 and 2"),
        (['method="lda'], "method must end with the quotation mark"),
        (['method="l\\da"'], "method must be a text as in TOML"),
    ],
)
def test_what_is_no_setting_is_an_error(words: list[str], sentence: str | None) -> None:
    if sentence is None:  # a value that the key refuses
        assert parse_settings(words) == {"method": "lda nonsense"}
        return
    with pytest.raises(ValueError) as refusal:
        parse_settings(words)
    assert sentence in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", 'method = "fedncm"\nalpha = 0.1'),
        ("x.yaml", "method: fedncm\nalpha: 1e-1"),
        ("x.yml", "{method: fedncm, alpha: 0.1}"),
        ("x.json", json.dumps(FEDNCM)),
    ],
)
def test_files_hold_the_same(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_settings(tmp_path / name) == FEDNCM


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("x.toml", "method = fedncm", "must be TOML, got: Invalid value"),
        ("x.toml", "[method]\na = 1", "method must be a text, a number, true or false"),
        ("x.yaml", "method: a\nmethod: b", "line 2: 'method' is there twice"),
        ("x.yaml", "labels: [a, b]", "line 1: labels must be a text"),
        ("x.yaml", "- method", "must be a mapping"),
        ("x.json", '{"seed": 1, "seed": 2}', "'seed' is there twice"),
        ("x.json", "[1]", "must be a JSON object"),
        ("x.json", "{", "must be JSON"),
        ("x.json", '{"seed": null}', "seed must be a text"),
        ("x.csv", "", "must be a file named .toml, .yaml or .json"),
        ("x.toml", None, "must be a file, got no"),
    ],
)
def test_a_file_that_is_wrong_is_named(
    tmp_path: Path, name: str, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, OSError)) as refusal:
        read_settings(tmp_path / name)
    assert sentence in str(refusal.value)
    assert str(tmp_path / name) in str(refusal.value)
