"""The entry point to workloads: generators by name, traces by file, options by keyword or in the name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pycontrol.simulation.apps import Workload
from pycontrol.simulation.workloads import own
from pycontrol.simulation.workloads.building import Selection
from pycontrol.simulation.workloads.gavel import gavel, is_gavel
from pycontrol.simulation.workloads.hived import Hived, hived
from pycontrol.simulation.workloads.imports import CSV_FORMATS, PAI, Import, Imported, Reader, pai
from pycontrol.simulation.workloads.oef import Oef20, OefWorkload, oef, oef_20
from pycontrol.simulation.workloads.philly import philly
from pycontrol.simulation.workloads.reading import BadTrace, head
from pycontrol.simulation.workloads.themis import ThemisWorkload, w1, w2


@dataclass(frozen=True)
class Generator:
    """A workload drawn from a seed. `fixed`: options that the name implies."""

    options: type[Any]
    make: Callable[[Any, int], Workload]
    about: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


TESTBED = {"shorter": 10.0}
"""The load stays (about 55 of 64 GPUs), the two weeks become 34 hours."""
GENERATORS: dict[str, Generator] = {
    "w1": Generator(ThemisWorkload, w1, "Themis' Workload 1: 85 apps in two weeks, up to 100 jobs of 1 to 2 GPUs"),
    "w2": Generator(ThemisWorkload, w2, "Themis' Workload 2: the same apps by successive halving, jobs of 1 to 8 GPUs"),
    "w1-testbed": Generator(ThemisWorkload, w1, "w1 in a tenth of the time, for 64 GPUs", TESTBED),
    "w2-testbed": Generator(ThemisWorkload, w2, "w2 in a tenth of the time, for 64 GPUs", TESTBED),
    "hived": Generator(Hived, hived, "HiveD's trace: 141,950 jobs of 11 tenants on 2,232 GPUs in two months"),
    "oef": Generator(OefWorkload, oef, "OEF's completion times: 50 tenants of 20 jobs on 24 GPUs of three types"),
    "oef-20": Generator(Oef20, oef_20, "OEF's throughput: 20 tenants that always have work, the same GPUs"),
}
FORMATS: dict[str, tuple[Reader, str]] = {
    "isonomy": (own.read, "Isonomy's own CSV (isonomy workload show NAME --out FILE)"),
    "philly": (philly, "the original Philly trace: cluster_job_log, JSON"),
    "philly-jobs": (CSV_FORMATS["philly-jobs"][1], "Philly's jobs, reconstructed CSV"),
    "philly-subset": (CSV_FORMATS["philly-subset"][1], "Philly's jobs as Pollux used them, CSV"),
    "themis-apps": (CSV_FORMATS["themis-apps"][1], "Philly's jobs grouped into apps, CSV"),
    "pcs": (CSV_FORMATS["pcs"][1], "a virtual cluster of Philly as PCS has it, CSV"),
    "gavel": (gavel, "Gavel's and Shockwave's traces, tab-separated"),
    "tiresias": (CSV_FORMATS["tiresias"][1], "Tiresias', Muri's, ElasticFlow's and Chronus' traces, CSV"),
    "helios": (CSV_FORMATS["helios"][1], "Helios' cluster_log.csv"),
    "openb": (CSV_FORMATS["openb"][1], "Alibaba's pods of 2023, CSV"),
    "pai": (pai, "Alibaba's pai_task_table of 2020, CSV without a header"),
    "pollux": (CSV_FORMATS["pollux"][1], "Pollux' and Sia's workloads, CSV (GPU time is drawn by application)"),
}
IN_NAME = re.compile(r"(?P<name>.*?)(?P<options>(,[a-z_]+=[^,=]*)*)", re.DOTALL)
"""w1,contention=2,count=24: options after the name; lists are joined by +."""


def load(name_or_path: str | Path, seed: int = 0, options: Mapping[str, Any] | None = None, **more: Any) -> Workload:
    """A workload by name (w1, hived, ...), or of a file, with the format before it (philly:FILE) or found by content.

    Options are a mapping, keywords, or follow the name: `w1,contention=2`, `philly:log.json,queues=a+b,faster=2`.
    Raises BadTrace (a ValueError) for a name, option or row that is wrong; OSError where a file cannot be opened.
    """
    return open_workload(name_or_path, seed, {**(options or {}), **more}).workload


def open_workload(name_or_path: str | Path, seed: int = 0, options: Mapping[str, Any] | None = None) -> Imported:
    """`load`, together with the skipped rows, which the workload's `source` also mentions."""
    name, given = split(str(name_or_path))
    given |= dict(options or {})
    generator = GENERATORS.get(name)
    if generator is not None:
        own_options, selection = _options(name, (generator.options, Selection), {**generator.fixed, **given})
        found = Imported(dataclasses.replace(generator.make(own_options, seed), name=name))
    else:
        reader, path = _reader(name)
        own_options, selection = _options(name, (Import, Selection), given)
        found = reader(path, own_options, seed)
    workload = selection.of(found.workload, found.skipped)
    if found.skipped.reasons or found.skipped.parts:
        workload = dataclasses.replace(workload, source=f"{workload.source}; {found.skipped}")
    return dataclasses.replace(found, workload=workload)


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


def _reader(name: str) -> tuple[Reader, Path]:
    kind, colon, rest = name.partition(":")
    if colon and kind in FORMATS:
        return FORMATS[kind][0], Path(rest)
    path = Path(name)
    if not path.exists():
        known = f"{', '.join(GENERATORS)}, FORMAT:FILE with {', '.join(FORMATS)}"
        raise BadTrace(f"{name}: is no file and none of {known}")
    if path.is_dir():
        raise BadTrace(f"{name}: is a folder, expected a file")
    return FORMATS[detect(path)][0], path


def detect(path: Path) -> str:
    """The format of a file, detected by its content; raises BadTrace if it is unknown."""
    text = head(path, 1 << 16)
    first = text.partition("\n")[0].rstrip("\r")
    if text.startswith(own.MARK):
        return "isonomy"
    if text.lstrip()[:1] == "[":
        return "philly"
    if is_gavel(text):
        return "gavel"
    columns = {c.strip() for c in first.split(",")}
    for name, (needed, _) in CSV_FORMATS.items():
        if needed <= columns:
            return name
    if len(first.split(",")) == len(PAI):
        return "pai"
    known = ", ".join(FORMATS)
    raise BadTrace(f"{path}: line 1: {first[:100]!r} is of no known format; say which: FORMAT:FILE with {known}")
