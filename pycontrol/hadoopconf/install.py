"""Computes the changes of a cluster's configuration for Isonomy, and their reversal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pycontrol.config import ConfigError
from pycontrol.hadoopconf import sitetext
from pycontrol.hadoopconf.names import (
    DOMINANT,
    GPU,
    HADOOP_VERSIONS,
    LINUX_EXECUTOR,
    NODE,
    OLD_WEB,
    OLD_WEB_KEY,
    OUR_EXECUTOR,
    OUR_EXECUTORS,
    OUR_SCHEDULER,
    OUR_WEB,
    SCHEDULER,
    TYPES,
    WEB_KEY,
    YARN,
)
from pycontrol.hadoopconf.sitechecks import keeps_mode

Sites = Mapping[str, Mapping[str, str]]
"""Properties by file."""
RECORD = "isonomy-install.json"
CAPACITY_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
EXECUTOR, _PLUGINS = "yarn.nodemanager.container-executor.class", "yarn.nodemanager.resource-plugins"
_HANDLER = "yarn.resourcemanager.placement-constraints.handler"
_SCHEDULER_CLASS = "yarn.resourcemanager.scheduler.class"
_PLAIN = "org.apache.hadoop.yarn.server.nodemanager."
_OURS_OF = {
    "": OUR_EXECUTOR,
    f"{_PLAIN}DefaultContainerExecutor": OUR_EXECUTOR,
    f"{_PLAIN}LinuxContainerExecutor": LINUX_EXECUTOR,
}
NM_PORT = "45454"


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices that the cluster's own files do not answer."""

    hadoop: str
    """3.3, 3.4 or 3.5."""
    mode: str = "off"
    """The one that is to be switched to: only `on` changes NodeManagers."""
    gpus: int | None = None
    """GPUs of each machine, if all have the same number."""
    state_dir: str = "/var/lib/isonomy"
    evidence_file: str = "/var/lib/hadoop/nm/isonomy-evidence.jsonl"


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """The change of one property; None: absent."""

    file: str
    key: str
    old: str | None
    new: str | None
    who: str
    """Which machines have the file: the ResourceManager's, the NodeManagers', or all."""


def plan(sites: Sites, choices: Choices) -> list[PropertyChange]:
    """All changes of an installation; raises ConfigError if the cluster is not supported.

    While Isonomy is off or only watches, the NodeManagers stay as they are: YARN's own GPU plugin keeps assigning and
    isolating GPUs, and what would replace it is not in force.
    """
    if choices.hadoop not in HADOOP_VERSIONS:
        raise ConfigError([f"--hadoop {choices.hadoop}: must be {' or '.join(HADOOP_VERSIONS)}"])
    yarn = sites.get(YARN, {})
    wanted = [
        *_resourcemanager(yarn, choices),
        (SCHEDULER, "yarn.scheduler.capacity.resource-calculator", DOMINANT, "ResourceManager"),
    ]
    if choices.mode == "on":
        wanted += _nodemanager(yarn, choices)
        types = _joined(sites.get(TYPES, {}).get("yarn.resource-types", ""), GPU)
        wanted.append((TYPES, "yarn.resource-types", types, "all"))
        if choices.gpus is not None:
            wanted.append((NODE, f"yarn.nodemanager.resource-type.{GPU}", str(choices.gpus), "NodeManagers"))
    return [
        PropertyChange(file, key, sites.get(file, {}).get(key), new, who)
        for file, key, new, who in wanted
        if sites.get(file, {}).get(key) != new
    ]


Wanted = tuple[str, str, str | None, str]


def _resourcemanager(yarn: Mapping[str, str], choices: Choices) -> Iterable[Wanted]:
    rm = "ResourceManager"
    used = yarn.get(_SCHEDULER_CLASS, CAPACITY_SCHEDULER)
    if used not in (CAPACITY_SCHEDULER, OUR_SCHEDULER):
        raise ConfigError([f"{YARN}: {_SCHEDULER_CLASS}: is {used}; Isonomy extends CapacityScheduler alone"])
    yield YARN, _SCHEDULER_CLASS, OUR_SCHEDULER, rm
    if choices.hadoop == "3.5":
        other = yarn.get(WEB_KEY, OUR_WEB)
        if other != OUR_WEB:
            raise ConfigError([f"{YARN}: {WEB_KEY}: is {other} already, and Hadoop takes one class"])
        yield YARN, WEB_KEY, OUR_WEB, rm
    else:
        yield YARN, OLD_WEB_KEY, _joined(yarn.get(OLD_WEB_KEY, ""), OLD_WEB), rm
        if yarn.get(WEB_KEY) == OUR_WEB:  # with it Hadoop 3.4's ResourceManager does not start
            yield YARN, WEB_KEY, None, rm
    if not keeps_mode(yarn):
        yield YARN, "isonomy.scheduler.mode-dir", choices.state_dir, rm
    yield YARN, "isonomy.bridge.token-file", f"{choices.state_dir}/bridge.token", rm
    yield YARN, "yarn.resourcemanager.recovery.enabled", "true", rm
    if yarn.get(_HANDLER) == "placement-processor":
        yield YARN, _HANDLER, "scheduler", rm


def _nodemanager(yarn: Mapping[str, str], choices: Choices) -> Iterable[Wanted]:
    nm, used = "NodeManagers", yarn.get(EXECUTOR, "")
    if used not in _OURS_OF and used not in OUR_EXECUTORS:
        raise ConfigError([f"{YARN}: {EXECUTOR}: is {used}; ours extend {' and '.join(k for k in _OURS_OF if k)}"])
    yield YARN, EXECUTOR, _OURS_OF.get(used, used), nm
    yield YARN, "isonomy.nm.evidence-file", yarn.get("isonomy.nm.evidence-file", choices.evidence_file), nm
    plugins = [p.strip() for p in yarn.get(_PLUGINS, "").split(",") if p.strip()]
    if GPU in plugins:
        yield YARN, _PLUGINS, ",".join(p for p in plugins if p != GPU) or None, nm
    yield YARN, "yarn.nodemanager.recovery.enabled", "true", nm
    address = yarn.get("yarn.nodemanager.address", ":0")
    if address.endswith(":0"):
        host = address.removesuffix(":0") or "0.0.0.0"
        yield YARN, "yarn.nodemanager.address", f"{host}:{NM_PORT}", nm


def _joined(names: str, more: str) -> str:
    found = [n.strip() for n in names.split(",") if n.strip()]
    return ",".join(found if more in found else [*found, more])


def recorded(before: Iterable[PropertyChange] | None, changes: Iterable[PropertyChange]) -> list[PropertyChange]:
    """The updated record of an installation after more changes; undoing restores the original values."""
    found = {(c.file, c.key): c for c in before or ()}
    for c in changes:
        first = found.get((c.file, c.key))
        found[c.file, c.key] = c if first is None or c.old != first.new else replace(c, old=first.old)
    return [c for c in found.values() if c.old != c.new]


def back(sites: Sites, record: Iterable[PropertyChange] | None) -> tuple[list[PropertyChange], list[PropertyChange]]:
    """(changes that undo an installation, recorded changes that were modified since).

    Without a record only Isonomy's properties are removed, and classes become Hadoop's own.
    """
    undone, left = [], []
    for c in record if record is not None else _ours(sites):
        now = sites.get(c.file, {}).get(c.key)
        if now == c.new:
            undone.append(PropertyChange(c.file, c.key, now, c.old, c.who))
        elif now != c.old:
            left.append(PropertyChange(c.file, c.key, now, c.old, c.who))
    return undone, left


def _ours(sites: Sites) -> Iterable[PropertyChange]:
    """The assumed changes without a record: as if Isonomy had been installed on a plain cluster."""
    yarn = sites.get(YARN, {})
    plain = {ours: theirs for theirs, ours in _OURS_OF.items() if theirs}
    for key, value in yarn.items():
        if key.startswith("isonomy.") or (key == WEB_KEY and value == OUR_WEB):
            yield PropertyChange(YARN, key, None, value, "all")
        elif key == OLD_WEB_KEY and OLD_WEB in value.split(","):
            others = ",".join(v for v in value.split(",") if v != OLD_WEB)
            yield PropertyChange(YARN, key, others or None, value, "ResourceManager")
        elif key == _SCHEDULER_CLASS and value == OUR_SCHEDULER:
            yield PropertyChange(YARN, key, CAPACITY_SCHEDULER, value, "ResourceManager")
        elif key == EXECUTOR and value in plain:
            yield PropertyChange(YARN, key, plain[value], value, "NodeManagers")


def changed_texts(texts: Mapping[str, str], changes: Iterable[PropertyChange]) -> dict[str, str]:
    """{file: new text} of the files that change; missing files are created."""
    by_file: dict[str, dict[str, str | None]] = {}
    for c in changes:
        by_file.setdefault(c.file, {})[c.key] = c.new
    return {file: sitetext.edited(file, texts.get(file, sitetext.EMPTY), wanted) for file, wanted in by_file.items()}
