"""Where experiments are, and what a file with all it extends amounts to.

A file may have ``variants``: versions of one experiment for different data. Variant
``v`` of ``x.yaml`` is the experiment ``x-v``. Later parts win: what the file extends,
what the variant extends, the file, the variant.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from fed3r_app.files.yaml_file import YamlError, YamlValue, read_yaml

FOLDER = Path(__file__).parents[1] / "experiments"
Content = dict[str, YamlValue]


@dataclass(frozen=True)
class Source:
    """An experiment's name, and where it stands: a file and perhaps a variant."""

    name: str
    file: Path
    variant: str | None = None

    def read(self) -> YamlValue:
        """Return the whole content, with everything that it extends."""
        own = dict(read_yaml(self.file).mapping())
        variants = own.pop("variants", None)
        chosen: Content = {}
        if variants and self.variant is not None:
            chosen = variants.mapping()[self.variant].mapping()
        bases = (_extended(part, (self.file,)) for part in (own, chosen))
        merged = reduce(_merge, (*bases, own, chosen))
        merged.pop("extends", None)
        return YamlValue("", merged, self.file, 1)


def catalogue(folder: Path = FOLDER) -> dict[str, Source]:
    """Return all experiments of a folder by name."""
    found: dict[str, Source] = {}
    for file in sorted(folder.glob("*.yaml")):
        for source in _of(file):
            if (other := found.setdefault(source.name, source)) is not source:
                raise YamlError(
                    f"{file}: the name {source.name!r} must be its own, got that of "
                    f"{other.file}."
                )
    return found


def find(name: str) -> list[Source]:
    """Return the experiments that a name, a pattern or a path means.

    A path may start beside the experiments' folder; that of a file with variants means
    the first of them.
    """
    if name.endswith((".yaml", ".yml")):
        for path in (Path(name), FOLDER.parent / name):
            if path.is_file():
                return _of(path)[:1]
        raise YamlError(f"{name} must be a file, got none of that name.")
    known = catalogue()
    if found := fnmatch.filter(known, name):
        return [known[each] for each in found]
    raise YamlError(
        f"{name!r} must be an experiment or the path of a .yaml file. "
        "`fed3r experiments list` lists the experiments."
    )


def _of(file: Path) -> list[Source]:
    """Return the experiments of a file: one, or one for each variant."""
    variants = read_yaml(file).mapping().get("variants")
    if variants is None:
        return [Source(file.stem, file)]
    if not variants.mapping():
        raise variants.must_be("a mapping of at least one variant")
    return [Source(f"{file.stem}-{name}", file, name) for name in variants.mapping()]


def _extended(content: Content, above: tuple[Path, ...]) -> Content:
    """Return what the files that a content extends amount to, in their order."""
    merged: Content = {}
    for each in content["extends"].distinct() if "extends" in content else ():
        name, file = each.text(), each.file.parent / each.text()
        if not file.is_file():
            raise each.error(f"extends must name a file beside it, got {name!r}.")
        if any(file.samefile(path) for path in above):
            raise each.error(f"{name!r} must not extend itself.")
        own = read_yaml(file).mapping()
        if "variants" in own:
            raise own["variants"].error("A file that is extended has no variants.")
        merged = reduce(_merge, (merged, _extended(own, (*above, file)), own))
    return merged


def _merge(base: Content, over: Content) -> Content:
    """Return two mappings as one; where both have a mapping, that is merged too."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if below and isinstance(below.value, dict) and isinstance(value.value, dict):
            value = replace(value, value=_merge(below.value, value.value))
        merged[key] = value
    return merged
