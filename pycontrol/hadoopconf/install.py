"""Computes the changes of a cluster's configuration for Isonomy, and their reversal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pycontrol.config import ConfigError
from pycontrol.hadoopconf import sitetext
from pycontrol.hadoopconf.names import (
    CORE,
    HADOOP_VERSIONS,
    HDFS,
    OLD_WEB,
    OLD_WEB_KEY,
    OUR_SCHEDULER,
    OUR_WEB,
    WEB_KEY,
    YARN,
)
from pycontrol.hadoopconf.properties import (
    ALL,
    CAPACITY_SCHEDULER,
    EXECUTOR,
    NM,
    OURS_OF,
    RM,
    SCHEDULER_CLASS,
    Choices,
    Sites,
    plan_rows,
)
from pycontrol.hadoopconf.sitefile import webhdfs_of

RECORD = "isonomy-install.json"


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """The change of one property; None: absent."""

    file: str
    key: str
    old: str | None
    new: str | None
    who: str
    """The class of hosts: ResourceManagers, GPU nodes, or all machines."""


def plan(sites: Sites, choices: Choices) -> list[PropertyChange]:
    """All changes of an installation up to a stage; raises ConfigError if the cluster is not supported.

    While Isonomy only watches, the NodeManagers stay as they are: YARN's own GPU plugin keeps assigning and isolating
    GPUs, and what would replace it is not in force.
    """
    if choices.hadoop not in HADOOP_VERSIONS:
        raise ConfigError([f"--hadoop {choices.hadoop}: must be {' or '.join(HADOOP_VERSIONS)}"])
    changes: list[PropertyChange] = []
    for row in plan_rows(choices.stage):
        old, new = sites.get(row.file, {}).get(row.key), row.wanted(sites, choices)
        if old != new:
            changes.append(PropertyChange(row.file, row.key, old, new, row.who))
            sites = edited_sites(sites, changes[-1:])
    return changes


def edited_sites(sites: Sites, changes: Iterable[PropertyChange]) -> Sites:
    """The properties after these changes."""
    now = {file: dict(site) for file, site in sites.items()}
    for c in changes:
        site = now.setdefault(c.file, {})
        site.pop(c.key, None)
        site |= {} if c.new is None else {c.key: c.new}
    return now


def control_plane(sites: Sites, rm_web: str) -> dict[str, str]:
    """What the cluster's files say of isonomy.yaml: the templates' section `isonomy`. Of a pair, both machines."""
    hosts = [str(urlsplit(url).hostname) for url in rm_web.split(",")]
    if len(hosts) == 1:
        return {"rm_web": rm_web}
    advertise = ",".join(f"{host}:26501" for host in hosts)
    return {
        "rm_web": rm_web,
        "agents_advertise": advertise,
        "standby_webhdfs": webhdfs_of({**sites.get(CORE, {}), **sites.get(HDFS, {})}),
    }


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
    plain = {ours: theirs for theirs, ours in OURS_OF.items() if theirs}
    for key, value in yarn.items():
        if key.startswith("isonomy.") or (key == WEB_KEY and value == OUR_WEB):
            yield PropertyChange(YARN, key, None, value, ALL)
        elif key == OLD_WEB_KEY and OLD_WEB in value.split(","):
            others = ",".join(v for v in value.split(",") if v != OLD_WEB)
            yield PropertyChange(YARN, key, others or None, value, RM)
        elif key == SCHEDULER_CLASS and value == OUR_SCHEDULER:
            yield PropertyChange(YARN, key, CAPACITY_SCHEDULER, value, RM)
        elif key == EXECUTOR and value in plain:
            yield PropertyChange(YARN, key, plain[value], value, NM)


def changed_texts(texts: Mapping[str, str], changes: Iterable[PropertyChange]) -> dict[str, str]:
    """{file: new text} of the files that change; missing files are created."""
    by_file: dict[str, dict[str, str | None]] = {}
    for c in changes:
        by_file.setdefault(c.file, {})[c.key] = c.new
    return {file: sitetext.edited(file, texts.get(file, sitetext.EMPTY), wanted) for file, wanted in by_file.items()}
