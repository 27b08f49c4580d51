"""YAML that remembers where everything stands, so that errors can name the line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

Scalar = str | int | float | bool
_KINDS = ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")


class YamlError(ValueError):
    """A mistake in a YAML file; the message names file and line."""


@dataclass(frozen=True)
class YamlValue:
    """A value, the keys that lead to it joined by dots, its file and its line."""

    key: str
    value: Scalar | list[YamlValue] | dict[str, YamlValue] | None
    file: Path
    line: int

    def error(self, message: str) -> YamlError:
        """Return an error that says where this stands."""
        return YamlError(f"{self.file}, line {self.line}: {message}")

    def must_be(self, rule: str) -> YamlError:
        """Return the error that this is not what it should be."""
        shown = "nothing" if self.value is None else repr(self.value)
        if isinstance(self.value, (list, dict)):
            kind = "list" if isinstance(self.value, list) else "mapping"
            shown = f"a {kind}" if self.value else f"an empty {kind}"
        return self.error(f"{self.key} must be {rule}, got {shown}.")

    def mapping(self, *known: str, need: bool = False) -> dict[str, YamlValue]:
        """Return the values by key; of known keys, all of them if needed."""
        if not isinstance(self.value, dict):
            raise self.must_be("a mapping of keys to values")
        for key, value in self.value.items():
            if known and key not in known:
                raise value.error(unknown(key, known))
        if need and (missing := [key for key in known if key not in self.value]):
            raise self.error(f"{self.key}.{missing[0]} is missing.")
        return self.value

    def items(self) -> list[YamlValue]:
        """Return the values of a list that is not empty."""
        if not isinstance(self.value, list):
            raise self.must_be("a list")
        if not self.value:
            raise self.must_be("a list of at least one value")
        return self.value

    def distinct(self) -> list[YamlValue]:
        """Return the values of a list, or a single text, none of them twice."""
        values = [self] if isinstance(self.value, str) else self.items()
        seen: set[str] = set()
        for value in values:
            if (text := str(value.scalar())) in seen:
                raise value.error(f"{self.key} must not name {text!r} twice.")
            seen.add(text)
        return values

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

    def one_of(self, names: Iterable[str], rule: str) -> str:
        """Return a text that is among some names."""
        if self.text() not in names:
            raise self.must_be(f"{rule} ({'; '.join(names)})")
        return self.text()

    def whole(self, least: int = 1) -> int:
        """Return a whole number."""
        if type(self.value) is not int or self.value < least:
            raise self.must_be(f"a whole number >= {least}")
        return self.value

    def share(self, or_all: bool = False) -> float:
        """Return a number between 0 and 1, or 1 itself."""
        if or_all and self.value == 1:
            return 1.0
        if type(self.value) is not float or not 0 < self.value < 1:
            raise self.must_be("a number between 0 and 1")
        return self.value

    def percentage(self) -> float:
        """Return a number from 0 to 100."""
        value = self.scalar()
        if isinstance(value, (str, bool)) or not 0 <= value <= 100:
            raise self.must_be("a percentage from 0 to 100")
        return value


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the message that a key is not known."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return f"{key!r} is not a key that is known here. {hint}"


def read_yaml(file: Path) -> YamlValue:
    """Return what a file holds, a mapping."""
    try:
        return _parse(file, file.read_text("utf-8"))
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark
        place = f"{file}, line {where.line + 1 if where else 1}"
        raise YamlError(f"{place}: it must be YAML, got: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise YamlError(f"{file}: it must be YAML, got: {error}.") from None
    except RecursionError:
        raise YamlError(f"{file}: lists and mappings are nested too deep.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise YamlError(f"{file}: it can't be read: {error}.") from None


@lru_cache(maxsize=64)  # many experiments extend the same files
def _parse(file: Path, text: str) -> YamlValue:
    node = yaml.compose(text, _Loader)
    if not isinstance(node, yaml.MappingNode):
        raise YamlError(f"{file}, line 1: it must be a mapping of keys.")
    return _value(node, YamlValue("", None, file, 1))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, for which 4e-5 is a number as in YAML 1.2."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Return the next node; anchors, which can make a short file huge, raise."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if name := getattr(event, "anchor", None):
            problem = f"the anchor or alias {name!r}, which is not allowed here"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)  # type: ignore[arg-type]


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _value(node: yaml.Node, here: YamlValue) -> YamlValue:
    """Return the value of a node and of all below it; it stands where its key is."""
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _KINDS:
        raise here.error(f"{node.tag!r} is not allowed here.")
    if isinstance(node, yaml.ScalarNode):
        value = _Loader("").construct_object(node)
        known = value is None or isinstance(value, Scalar)
        # A date is the text that it was.
        return replace(here, value=value if known else str(node.value))
    if isinstance(node, yaml.SequenceNode):
        parts = [_value(each, _at(here, here.key, each)) for each in node.value]
        return replace(here, value=parts)
    values: dict[str, YamlValue] = {}
    for name, below in node.value:
        where = _at(here, f"{here.key}.{name.value}".lstrip("."), name)
        if not isinstance(name, yaml.ScalarNode):
            raise where.error("a key must be a text.")
        if name.value in values:
            first = values[name.value].line
            raise where.error(f"{where.key!r} is there twice, first in line {first}.")
        values[name.value] = _value(below, where)
    return replace(here, value=values)


def _at(above: YamlValue, key: str, node: yaml.Node) -> YamlValue:
    """Return a value still to be read, where a node stands."""
    return replace(above, key=key, line=node.start_mark.line + 1)
