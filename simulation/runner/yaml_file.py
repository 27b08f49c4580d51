"""YAML that remembers where everything stands, so that errors can name the line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

Scalar = str | int | float | bool
_MAX_DEPTH = 8
_PLAIN_TAGS = tuple(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")
)


class ExperimentError(ValueError):
    """A mistake in an experiment file, with a sentence that names file and line."""


@dataclass(frozen=True)
class YamlValue:
    """A value of a YAML file, and where it stands.

    Parameters
    ----------
    key : str
        The keys that lead to it, joined by dots.
    value : scalar, list or dict of entries
        What it is.
    file : Path
        Its file.
    line : int
        Its line, counted from 1.
    """

    key: str
    value: Scalar | list[YamlValue] | dict[str, YamlValue] | None
    file: Path
    line: int

    def error(self, sentence: str) -> ExperimentError:
        """Return an error that says where this stands."""
        return ExperimentError(f"{self.file}, line {self.line}: {sentence}")

    def must_be(self, rule: str) -> ExperimentError:
        """Return the error that this is not what it should be."""
        return self.error(f"{self.key} must be {rule}, got {self._shown()}.")

    def mapping(self, known: Iterable[str] | None = None) -> dict[str, YamlValue]:
        """Return the entries of a mapping, whose keys must be known ones."""
        if not isinstance(self.value, dict):
            raise self.must_be("a mapping of keys to values")
        if known is not None:
            allowed = tuple(known)
            for key, entry in self.value.items():
                if key not in allowed:
                    raise entry.error(unknown(key, allowed))
        return self.value

    def items(self) -> list[YamlValue]:
        """Return the entries of a list that is not empty."""
        if not isinstance(self.value, list):
            raise self.must_be("a list")
        if not self.value:
            raise self.must_be("a list of at least one value")
        return self.value

    def scalar(self) -> Scalar:
        """Return a text, number or truth value."""
        if self.value is None or isinstance(self.value, (list, dict)):
            raise self.must_be("a text, a number, true or false")
        return self.value

    def text(self) -> str:
        """Return a text that is not empty."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.must_be("a text")
        return self.value.strip()

    def texts(self) -> list[str]:
        """Return the texts of a list, or a single one, none of them twice."""
        entries = [self] if isinstance(self.value, str) else self.items()
        refuse_repetition(entries)
        return [entry.text() for entry in entries]

    def whole(self, least: int = 1) -> int:
        """Return a whole number."""
        if type(self.value) is not int or self.value < least:
            raise self.must_be(f"a whole number >= {least}")
        return self.value

    def share(self) -> float:
        """Return a number between 0 and 1."""
        if type(self.value) is not float or not 0 < self.value < 1:
            raise self.must_be("a number between 0 and 1")
        return self.value

    def _shown(self) -> str:
        if isinstance(self.value, (list, dict)):
            kind = "list" if isinstance(self.value, list) else "mapping"
            return f"a {kind}" if self.value else f"an empty {kind}"
        return "nothing" if self.value is None else repr(self.value)


def refuse_repetition(entries: Iterable[YamlValue]) -> None:
    """Raise if a value stands twice in a list."""
    seen: set[str] = set()
    for entry in entries:
        text = str(entry.scalar())
        if text in seen:
            raise entry.error(f"{entry.key} must not name {text!r} twice.")
        seen.add(text)


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the sentence that a key is not known."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return f"{key!r} is not a key that is known here. {hint}"


def read_yaml(file: Path) -> YamlValue:
    """Return what a file holds, a mapping."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{file}: it can't be read: {error}.") from None
    return _parse(file, text)


@lru_cache(maxsize=64)  # many experiments extend the same files
def _parse(file: Path, text: str) -> YamlValue:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise ExperimentError(f"{file}, line 1: it must be a mapping of keys.")
            return YamlValue("", dict(_entries(loader, node, "", file, 0)), file, 1)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        sentence = f"it must be YAML, got: {error.problem}."
        raise ExperimentError(f"{file}, line {line}: {sentence}") from None
    except yaml.YAMLError as error:
        raise ExperimentError(f"{file}: it must be YAML, got: {error}.") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, for which 4e-5 is a number as in YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _entries(
    loader: _Loader, node: yaml.MappingNode, prefix: str, file: Path, depth: int
) -> Iterator[tuple[str, YamlValue]]:
    """Yield the keys of a mapping with their entries, which stand where the key is."""
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ExperimentError(f"{file}, line {line}: a key must be a text.")
        name = str(key_node.value)
        if name in seen:
            raise ExperimentError(
                f"{file}, line {line}: {prefix + name!r} is there twice, first in "
                f"line {seen[name]}."
            )
        seen[name] = line
        yield name, _entry(loader, value_node, prefix + name, file, line, depth + 1)


def _entry(
    loader: _Loader, node: yaml.Node, key: str, file: Path, line: int, depth: int
) -> YamlValue:
    """Return the entry of a node and of all below it."""
    if depth > _MAX_DEPTH:  # an anchor inside itself has no end
        raise ExperimentError(f"{file}, line {line}: {key} is nested too deeply.")
    if not node.tag.startswith(_PLAIN_TAGS):
        raise ExperimentError(f"{file}, line {line}: {node.tag!r} is not allowed here.")
    if isinstance(node, yaml.MappingNode):
        pairs = _entries(loader, node, f"{key}.", file, depth)
        return YamlValue(key, dict(pairs), file, line)
    if isinstance(node, yaml.SequenceNode):
        parts = [
            _entry(loader, part, key, file, part.start_mark.line + 1, depth + 1)
            for part in node.value
        ]
        return YamlValue(key, parts, file, line)
    value = loader.construct_object(node)
    if value is not None and not isinstance(value, (str, int, float, bool)):
        value = str(node.value)  # a date is the text that it was
    return YamlValue(key, value, file, line)
