"""Settings as people write them: ``key=value`` in command lines, and files.

One parser for all commands. What it does not understand is an error: nothing is
dropped. No torch.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fed3r_app.config import DEFAULTS, Value, is_text
from fed3r_app.files.yaml_file import read_yaml

_KEY = r"[A-Za-z][\w-]*"
_SETTING = re.compile(rf"({_KEY})\s*=")
# What ends a value without quotation marks, beside the end of the text.
_NEXT_SETTING = re.compile(rf"\s+{_KEY}\s*=")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
_OPTION = re.compile(r"--?[a-z]")
_TRUTH = {"true": True, "false": False}


def parse_settings(words: Sequence[str]) -> dict[str, Value]:
    """Return the settings in the words of a command line.

    ``key=value`` with or without quotation marks and spaces, as one word of the shell
    or as several, each word with one setting or with many. A text needs quotation marks
    only where it would end too early.
    """
    settings: dict[str, Value] = {}
    for word in filter(_OPTION.match, words):
        raise _leftover(word)  # the parser of the command line has put it last
    for word in _join_words(words):
        for key, value in _split_word(word):
            if key in settings:
                raise ValueError(
                    f"{key} must be given once, got {settings[key]!r} and {value!r}."
                )
            settings[key] = value
    return settings


def is_settings_file(word: str) -> bool:
    """Return whether a word is the name of a file with settings."""
    return Path(word).suffix in _READERS and not _SETTING.match(word.strip())


def read_settings(path: Path) -> dict[str, Value]:
    """Return the settings in a TOML, YAML or JSON file, as they stand there."""
    if path.suffix not in _READERS:
        raise ValueError(
            f"--config must be a file named .toml, .yaml or .json, got {path}."
        )
    if not path.is_file():
        raise FileNotFoundError(f"--config must be a file, got no {path}.")
    settings = _READERS[path.suffix](path)
    for key, value in settings.items():
        if not isinstance(value, Value):
            raise ValueError(
                f"{path}: {key} must be a text, a number, true or false, got {value!r}."
            )
    return settings


def _join_words(words: Sequence[str]) -> Iterator[str]:
    """Yield words, those that a shell has split at the spaces round ``=`` joined."""
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if rest and "=" not in word and rest[0].startswith("="):
            word += rest.popleft()
        begun = _SETTING.match(word.strip())
        if not begun:
            raise _leftover(" ".join([word, *rest]))
        if begun.end() == len(word.strip()) and not _begins(rest):
            word += rest.popleft()
        yield word


def _begins(words: Sequence[str]) -> bool:
    """Return whether the next of some words, if any, begins a setting."""
    if not words or _SETTING.match(words[0]):
        return True
    return len(words) > 1 and "=" not in words[0] and words[1].startswith("=")


def _split_word(word: str) -> Iterator[tuple[str, Value]]:
    """Yield the settings in one word: ``method="fedncm" alpha=0.1``."""
    while word := word.strip():
        begun = _SETTING.match(word)
        if not begun:
            raise _leftover(word)
        key, word = begun[1], word[begun.end() :]
        is_quoted = word.lstrip().startswith(("'", '"'))
        value, word = (_take_quoted if is_quoted else _take_bare)(key, word)
        yield key, value


def _take_quoted(key: str, text: str) -> tuple[Value, str]:
    """Return the text in quotation marks that another one begins with, and the rest."""
    text = text.lstrip()
    quoted = _QUOTED.match(text)
    if not quoted:
        raise ValueError(
            f"{key} must end with the quotation mark that it begins with, got {text}."
        )
    rest = text[quoted.end() :]
    if rest[:1].strip():
        raise _leftover(rest)
    try:
        value: str = tomllib.loads(f"text = {quoted[0]}")["text"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{key} must be a text as in TOML, got {quoted[0]}: {error}. Single "
            "quotation marks take everything as it is."
        ) from None
    return value, rest


def _take_bare(key: str, text: str) -> tuple[Value, str]:
    """Return the value that a text begins with, and the rest."""
    following = _NEXT_SETTING.search(text)
    end = following.start() if following else len(text)
    return _bare(key, text[:end].strip()), text[end:]


def _bare(key: str, text: str) -> Value:
    """Return a value without quotation marks: a text where the key has texts."""
    if is_text(key):
        return text
    if text in _TRUTH:
        return _TRUTH[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text  # auto, or what the key will refuse


def _leftover(text: str) -> ValueError:
    """Return the error about text that is no setting."""
    key, _, value = text.partition(" ")
    name, hint = key.lstrip("-"), ""
    if name in DEFAULTS:
        hint = f"Did you mean {name}={value.partition(' ')[0] or '…'}?"
    elif is_settings_file(key):
        hint = f"Did you mean --config {key}?"
    elif key != name:
        hint = "Options are those of --help."
    return ValueError(f"Settings must be key=value, got {text!r}. {hint}".rstrip())


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML, got: {error}.") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    return {key: each.scalar() for key, each in read_yaml(path).mapping().items()}


def _read_json(path: Path) -> dict[str, Any]:
    def refuse_twins(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
        names = [name for name, _ in pairs]
        if twins := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{min(twins)!r} is there twice")
        return dict(pairs)

    try:
        values = json.loads(path.read_text("utf-8"), object_pairs_hook=refuse_twins)
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise ValueError(f"{path} must be JSON, got: {error}.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a JSON object, got {values!r:.40}.")
    return values


_READERS = {".toml": _read_toml, ".json": _read_json}
_READERS |= dict.fromkeys((".yaml", ".yml"), _read_yaml)
