"""Where experiments are, and what a file with all it extends amounts to.

A file may have ``variants``: versions of one experiment for different data. Variant
``v`` of ``x.yaml`` is the experiment ``x-v``. Later parts win: what the file extends,
what the variant extends, the file, the variant.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from pathlib import Path

from simulation.runner.yaml_file import ExperimentError, YamlValue, read_yaml

FOLDER = Path(__file__).parents[1] / "experiments"


VARIANTS = "variants"
_EXTENDS = "extends"


@dataclass(frozen=True)
class Source:
    """An experiment's name, and where it stands: a file and perhaps a variant."""

    name: str
    file: Path
    variant: str | None = None

    def read(self) -> YamlValue:
        """Return the whole content, with everything that it extends."""
        content = read_yaml(self.file)
        parts = content.mapping()
        own = {key: value for key, value in parts.items() if key != VARIANTS}
        chosen: dict[str, YamlValue] = {}
        if self.variant is not None:
            chosen = parts[VARIANTS].mapping()[self.variant].mapping()
        merged: dict[str, YamlValue] = {}
        for layer in (own, chosen):
            if _EXTENDS in layer:
                merged = _merge(merged, _extended(layer[_EXTENDS], (self.file,)))
        for layer in (own, chosen):
            merged = _merge(merged, _without_extends(layer))
        return YamlValue("", merged, self.file, 1)


def catalogue(folder: Path = FOLDER) -> dict[str, Source]:
    """Return all experiments of a folder by name."""
    found: dict[str, Source] = {}
    for file in sorted(folder.glob("*.yaml")):
        for source in sources_of(file):
            if source.name in found:
                raise ExperimentError(
                    f"{file}: the name {source.name!r} must be its own, got that of "
                    f"{found[source.name].file}."
                )
            found[source.name] = source
    return found


def sources_of(file: Path) -> list[Source]:
    """Return the experiments of a file: one, or one for each variant."""
    content = read_yaml(file).mapping()
    if VARIANTS not in content:
        return [Source(file.stem, file)]
    variants = content[VARIANTS].mapping()
    if not variants:
        raise content[VARIANTS].must_be("a mapping of at least one variant")
    return [Source(f"{file.stem}-{name}", file, name) for name in variants]


def find(name: str, folder: Path = FOLDER) -> list[Source]:
    """Return the experiments that a name, a pattern or a path means.

    A path of a file with variants means the first of them.
    """
    if name.endswith((".yaml", ".yml")):
        return [sources_of(_existing(name, folder))[0]]
    known = catalogue(folder)
    found = [known[each] for each in fnmatch.filter(known, name)]
    if not found:
        raise ExperimentError(
            f"{name!r} must be an experiment or the path of a .yaml file. "
            "`python -m simulation list` lists the experiments."
        )
    return found


def _existing(name: str, folder: Path) -> Path:
    """Return the file of a path, which may start beside the experiments' folder."""
    for path in (Path(name), folder.parent / name):
        if path.is_file():
            return path
    raise ExperimentError(f"{name} must be a file, got none of that name.")


def _extended(extends: YamlValue, above: tuple[Path, ...]) -> dict[str, YamlValue]:
    """Return what some files amount to, merged in their order."""
    merged: dict[str, YamlValue] = {}
    for name in extends.texts():
        file = extends.file.parent / name
        if not file.is_file():
            raise extends.error(f"extends must name a file beside it, got {name!r}.")
        if file.resolve() in (path.resolve() for path in above):
            raise extends.error(f"{name!r} must not extend itself.")
        content = read_yaml(file).mapping()
        if VARIANTS in content:
            raise content[VARIANTS].error("A file that is extended has no variants.")
        if _EXTENDS in content:
            below = _extended(content[_EXTENDS], (*above, file))
            merged = _merge(merged, below)
        merged = _merge(merged, _without_extends(content))
    return merged


def _without_extends(content: dict[str, YamlValue]) -> dict[str, YamlValue]:
    return {key: value for key, value in content.items() if key != _EXTENDS}


def _merge(
    base: dict[str, YamlValue], over: dict[str, YamlValue]
) -> dict[str, YamlValue]:
    """Return two mappings as one; where both have a mapping, that is merged too."""
    merged = dict(base)
    for key, entry in over.items():
        below = merged.get(key)
        if below and isinstance(below.value, dict) and isinstance(entry.value, dict):
            entry = replace(entry, value=_merge(below.value, entry.value))
        merged[key] = entry
    return merged
