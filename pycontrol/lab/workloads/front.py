"""The entry point to workloads: generators by name, traces by file, options by keyword or in the name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pycontrol.lab.workloads.building import Import, Imported, Reader, Selection
from pycontrol.lab.workloads.trace_table import BadTrace, head
from pycontrol.simulation.trace_apps import TraceApp, Workload


@dataclass(frozen=True)
class Generator:
    """A workload drawn from a seed. `fixed`: options that the name implies."""

    options: type[Any]
    make: Callable[[Any, int], Workload]
    about: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A kind of trace file. `fits`: whether a file that begins with this text has it."""

    read: Reader
    about: str
    fits: Callable[[str], bool]


IN_NAME = re.compile(r"(?P<name>.*?)(?P<options>(,[a-z_]+=[^,=]*)*)", re.DOTALL)
"""w1,contention=2,count=24: options after the name; lists are joined by +."""


@dataclass(frozen=True)
class Catalogue:
    """Workloads by name, and formats of files in the order in which a file is tried for them."""

    generators: Mapping[str, Generator]
    formats: Mapping[str, Format]

    def load(
        self, name_or_path: str | Path, seed: int = 0, options: Mapping[str, Any] | None = None, **more: Any
    ) -> Workload:
        """A workload by name (w1, ...), or of a file, with the format before it (philly:FILE) or found by content.

        Options are a mapping, keywords, or follow the name: `w1,contention=2`, `philly:log.json,queues=a+b,faster=2`.
        Raises BadTrace (a ValueError) for a name, option or row that is wrong; OSError where a file cannot be opened.
        """
        return self.open(name_or_path, seed, {**(options or {}), **more}).workload

    def open(self, name_or_path: str | Path, seed: int = 0, options: Mapping[str, Any] | None = None) -> Imported:
        """`load`, together with the skipped rows, which the workload's `source` also mentions."""
        name, given = split(str(name_or_path))
        given |= dict(options or {})
        generator = self.generators.get(name)
        if generator is not None:
            own_options, selection = _options(name, (generator.options, Selection), {**generator.fixed, **given})
            found = Imported(dataclasses.replace(generator.make(own_options, seed), name=name))
        else:
            reader, path = self._reader(name)
            own_options, selection = _options(name, (Import, Selection), given)
            found = _each_once(reader(path, own_options, seed), path, own_options.lenient)
        workload = selection.of(found.workload, found.skipped)
        if found.skipped.reasons or found.skipped.parts:
            workload = dataclasses.replace(workload, source=f"{workload.source}; {found.skipped}")
        return dataclasses.replace(found, workload=workload)

    def _reader(self, name: str) -> tuple[Reader, Path]:
        kind, colon, rest = name.partition(":")
        if colon and kind in self.formats:
            return self.formats[kind].read, Path(rest)
        path = Path(name)
        if not path.exists():
            known = f"{', '.join(self.generators)}, FORMAT:FILE with {', '.join(self.formats)}"
            raise BadTrace(f"{name}: is no file and none of {known}")
        if path.is_dir():
            raise BadTrace(f"{name}: is a folder, expected a file")
        return self.formats[self.detect(path)].read, path

    def detect(self, path: Path) -> str:
        """The format of a file, detected by its content; raises BadTrace if it is unknown."""
        text = head(path, 1 << 16)
        for name, form in self.formats.items():
            if form.fits(text):
                return name
        first = text.partition("\n")[0].rstrip("\r")
        known = ", ".join(self.formats)
        raise BadTrace(f"{path}: line 1: {first[:100]!r} is of no known format; say which: FORMAT:FILE with {known}")


def _each_once(found: Imported, path: Path, lenient: bool) -> Imported:
    """Without the later ones of apps that have one id, which BadTrace names unless `lenient`."""
    apps: dict[str, TraceApp] = {}
    for app in found.workload.apps:
        if apps.setdefault(app.app_id, app) is not app and not lenient:
            raise BadTrace(f"{path}: two apps have the id {app.app_id} (bad_rows=skip keeps the first)")
    found.skipped.drop("with the id of another", len(found.workload.apps) - len(apps))
    return dataclasses.replace(found, workload=dataclasses.replace(found.workload, apps=tuple(apps.values())))


def split(text: str) -> tuple[str, dict[str, Any]]:
    """(name, options in it); the path of an existing file is a name as a whole."""
    match = IN_NAME.fullmatch(text)
    if match is None or Path(text).exists():
        return text, {}
    pairs = (part.partition("=") for part in match["options"].split(",") if part)
    return match["name"], {key: value for key, _, value in pairs}


def option_names(kind: type[Any]) -> dict[str, Any]:
    """{option: default} of an options class."""
    return {f.name: f.default for f in dataclasses.fields(kind)}


def _options(name: str, kinds: Sequence[type[Any]], given: Mapping[str, Any]) -> list[Any]:
    """The options divided among the kinds, checked."""
    known = [option_names(kind) for kind in kinds]
    wrong = sorted(set(given) - set().union(*known))
    if wrong:
        all_known = ", ".join(o for options in known for o in options)
        raise BadTrace(f"{name}: {', '.join(wrong)}: is not an option; known are {all_known}")
    made = []
    for kind, names in zip(kinds, known, strict=True):
        mine = {key: _list(kind, key, value) for key, value in given.items() if key in names}
        try:
            made.append(TypeAdapter(kind).validate_python(mine))
        except ValidationError as e:
            problems = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']} (got {x['input']!r})" for x in e.errors())
            raise BadTrace(f"{name}: {problems}") from e
    return made


def _list(kind: type[Any], key: str, value: Any) -> Any:
    """Text of an option that is a list, as that list: a+b."""
    if isinstance(value, str) and isinstance(option_names(kind)[key], tuple):
        return tuple(part for part in value.split("+") if part)
    return value
