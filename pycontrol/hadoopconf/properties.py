"""What Isonomy needs of Hadoop's files, one row a property: the plan writes it, the check compares with it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from urllib.parse import urlsplit

from pycontrol.config import ConfigError
from pycontrol.hadoopconf import sitefile
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import (
    CORE,
    DOMINANT,
    GPU,
    HADOOP_VERSIONS,
    HDFS,
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
from pycontrol.hadoopconf.sitefile import names, webhdfs_of

RECORD = "isonomy-install.json"
Sites = Mapping[str, Mapping[str, str]]
"""Properties by file."""
CAPACITY_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
SCHEDULER_CLASS = "yarn.resourcemanager.scheduler.class"
EXECUTOR, PLUGINS = "yarn.nodemanager.container-executor.class", "yarn.nodemanager.resource-plugins"
STORE = "yarn.scheduler.configuration.store.class"
NM_PORT = "45454"
_RM, _NM = "yarn.resourcemanager.", "yarn.nodemanager."
TOKEN_FILE = "isonomy.bridge.token-file"
CONFINES, OUR_HANDLER = f"{_NM}linux-container-executor.resources-handler.class", "isonomy.nm.GpuDevices"
ENVIRONMENT = f"{_NM}env-whitelist"
_CALCULATOR = "yarn.scheduler.capacity.resource-calculator"
_OLDER = f"3.3's and 3.4's ResourceManager does not start with it, theirs is {OLD_WEB_KEY} = {OLD_WEB}"
_PLAIN = "org.apache.hadoop.yarn.server.nodemanager."
OURS_OF = {
    "": OUR_EXECUTOR,
    f"{_PLAIN}DefaultContainerExecutor": OUR_EXECUTOR,
    f"{_PLAIN}LinuxContainerExecutor": LINUX_EXECUTOR,
}
"""Hadoop's executor -> ours that extends it."""
RM, NM, ALL = "ResourceManagers", "GPU nodes", "all machines"
"""The classes of hosts that a property goes to."""


class Stage(IntEnum):
    """How far an installation goes; each stage includes those before it."""

    WATCH = 0
    EXECUTORS = 1
    QUEUE = 2
    ALL = 3

    @property
    def meaning(self) -> str:
        """What it is."""
        return (
            "CapacityScheduler and YARN's GPU plugin go on; Isonomy watches",
            "the GPU nodes get Isonomy's executor, one after the other",
            "Isonomy serves the named queues",
            "Isonomy serves all queues",
        )[self]


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices that the cluster's own files do not answer."""

    hadoop: str = ""
    """3.3, 3.4 or 3.5; empty: unknown."""
    stage: Stage = Stage.ALL
    queues: str = "root"
    """Those that Isonomy serves, with full paths, separated by commas; root: all."""
    gpus: int | None = None
    """GPUs of each machine, if all have the same number."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property: its value where Isonomy works, who has it, and what happens otherwise."""

    key: str
    who: str
    wanted: Callable[[Sites, Choices], str | None]
    """Its value, given what is there; None: absent. Raises ConfigError where the cluster is not supported."""
    otherwise: str = ""
    """What happens with another value; empty: the check says nothing."""
    level: str = "error"
    file: str = YARN

    @property
    def stage(self) -> Stage:
        """The first stage that needs it."""
        return Stage.WATCH if self.who == RM else Stage.EXECUTORS


def findings(sites: Sites, hadoop: str, there: bool) -> Iterator[Finding]:
    """Properties that differ from what Isonomy needs, in the files that are there.

    Where Isonomy is not there (yet) only that is said, and what Isonomy cannot work with. A machine's files are checked
    for the classes of hosts that they are of.
    """
    classes = classes_of(sites) if YARN in sites else {RM, NM, ALL}
    if not there:
        yield note(YARN, "", "names nothing of Isonomy; `isonomy install --hadoop-conf DIR` says what would change")
    for row in TABLE:
        if row.file not in sites or not row.otherwise or (there and row.who not in classes):
            continue
        try:
            wanted, got = row.wanted(sites, Choices(hadoop)), sites[row.file].get(row.key)
        except ConfigError as problem:
            yield error(row.file, row.key, problem.lines[0].removeprefix(f"{row.file}: {row.key}: "))
            continue
        if got == wanted or not there:
            continue
        do = f"must be {wanted} (got {got or 'nothing'})" if wanted is not None else f"must be absent (got {got})"
        yield Finding(row.level, row.file, row.key, f"{do}, else {row.otherwise}")


def classes_of(sites: Sites) -> set[str]:
    """The classes of hosts whose files these are, by what they name of Isonomy; a shared file is of both."""
    yarn, node = sites.get(YARN, {}), sites.get(NODE, {})
    ours, nm = [k for k in yarn if k.startswith("isonomy.")], "isonomy.nm."
    found = set()
    if yarn.get(SCHEDULER_CLASS) == OUR_SCHEDULER or any(not k.startswith(nm) for k in ours):
        found.add(RM)
    if yarn.get(EXECUTOR) in OUR_EXECUTORS or any(k.startswith(nm) for k in ours) or (ours and node):
        found.add(NM)
    return found | {ALL} if NM in found else found


def installed(sites: Sites) -> bool:
    """Whether yarn-site.xml names anything of Isonomy."""
    return bool(classes_of(sites))


def mutable(yarn: Mapping[str, str]) -> str:
    """The store that queues are kept in if not in capacity-scheduler.xml: zk, leveldb, fs or memory; else empty."""
    store = yarn.get(STORE, "file")
    return "" if store == "file" else store


def joined(text: str, *more: str) -> str:
    """The list with these names too."""
    return ",".join(dict.fromkeys([*names(text), *more]))


def _scheduler(sites: Sites, _choices: Choices) -> str:
    used = sites.get(YARN, {}).get(SCHEDULER_CLASS, CAPACITY_SCHEDULER)
    if used not in (CAPACITY_SCHEDULER, OUR_SCHEDULER):
        raise ConfigError([f"{YARN}: {SCHEDULER_CLASS}: is {used}; Isonomy extends CapacityScheduler alone"])
    return OUR_SCHEDULER


def _web(sites: Sites, choices: Choices) -> str | None:
    yarn = sites.get(YARN, {})
    found = yarn.get(WEB_KEY)
    if choices.hadoop in ("3.3", "3.4"):
        return None if found == OUR_WEB else found
    if not choices.hadoop and OLD_WEB in names(yarn.get(OLD_WEB_KEY, "")):
        return found
    if found not in (None, OUR_WEB):
        raise ConfigError([f"{YARN}: {WEB_KEY}: is {found} already, and Hadoop takes one class"])
    return OUR_WEB


def _old_web(sites: Sites, choices: Choices) -> str | None:
    found = sites.get(YARN, {}).get(OLD_WEB_KEY)
    return joined(found or "", OLD_WEB) if choices.hadoop in ("3.3", "3.4") else found


def _handler(sites: Sites, _choices: Choices) -> str | None:
    found = sites.get(YARN, {}).get(f"{_RM}placement-constraints.handler")
    return "scheduler" if found == "placement-processor" else found


def _calculator(sites: Sites, _choices: Choices) -> str | None:
    return sites.get(SCHEDULER, {}).get(_CALCULATOR) if mutable(sites.get(YARN, {})) else DOMINANT


def _executor(sites: Sites, _choices: Choices) -> str:
    used = sites.get(YARN, {}).get(EXECUTOR, "")
    if used not in OURS_OF and used not in OUR_EXECUTORS:
        raise ConfigError([f"{YARN}: {EXECUTOR}: is {used}; ours extend {' and '.join(k for k in OURS_OF if k)}"])
    return OURS_OF.get(used, used)


def _confines(sites: Sites, choices: Choices) -> str | None:
    """Who denies containers the GPUs of others: with LinuxContainerExecutor that, else the kernel asks nobody."""
    found = sites.get(YARN, {}).get(CONFINES)
    return OUR_HANDLER if _executor(sites, choices) == LINUX_EXECUTOR else found


def _cpu(sites: Sites, _choices: Choices) -> str | None:
    """What a former handler of cgroups did beside: it limited CPUs."""
    yarn = sites.get(YARN, {})
    former = yarn.get(CONFINES, "").endswith(".CgroupsLCEResourcesHandler")
    return "true" if former else yarn.get(f"{_NM}resource.cpu.enabled")


def _without(name: str, key: str) -> Callable[[Sites, Choices], str | None]:
    """A list as it is, but for this name; absent if nothing else is in it."""

    def wanted(sites: Sites, _choices: Choices) -> str | None:
        found = sites.get(YARN, {}).get(key)
        if name not in names(found or ""):
            return found
        return ",".join(n for n in names(found or "") if n != name) or None

    return wanted


_plugins, _environment = _without(GPU, PLUGINS), _without("CUDA_VISIBLE_DEVICES", ENVIRONMENT)


def _address(sites: Sites, _choices: Choices) -> str | None:
    """A NodeManager with recovery does not start with a port that changes, YARN's default."""
    yarn = sites.get(YARN, {})
    found = yarn.get("yarn.nodemanager.address")
    if yarn.get("yarn.nodemanager.recovery.enabled") != "true" or not (found or ":0").endswith(":0"):
        return found
    return f"{(found or '').removesuffix(':0') or '0.0.0.0'}:{NM_PORT}"


def _types(sites: Sites, _choices: Choices) -> str | None:
    """Types of both files, since resource-types.xml hides those of yarn-site.xml; absent if that one suffices."""
    hidden, found = sites.get(YARN, {}).get("yarn.resource-types", ""), sites.get(TYPES, {}).get("yarn.resource-types")
    if found is None and GPU in names(hidden):
        return None
    return joined(found or "", *names(hidden), GPU)


def _gpus(sites: Sites, choices: Choices) -> str | None:
    found = sites.get(NODE, {}).get(f"yarn.nodemanager.resource-type.{GPU}")
    return found if choices.gpus is None else str(choices.gpus)


def _true(_sites: Sites, _choices: Choices) -> str:
    return "true"


def _mode_dir(sites: Sites, _choices: Choices) -> str | None:
    """A folder for the mode where the ResourceManager keeps no state of its own that it can lie beside."""
    yarn = sites.get(YARN, {})
    store = yarn.get(f"{_RM}store.class", "FileSystemRMStateStore").rpartition(".")[2]
    kept = yarn.get(f"{_RM}recovery.enabled") == "true" and store in ("ZKRMStateStore", "FileSystemRMStateStore")
    return yarn.get("isonomy.scheduler.mode-dir", None if kept else "/var/lib/isonomy")


TABLE = (
    Property(SCHEDULER_CLASS, RM, _scheduler, "GPUs would not be shared by Isonomy"),
    Property(WEB_KEY, RM, _web, f"there is no REST on Hadoop 3.5; {_OLDER}"),
    Property(OLD_WEB_KEY, RM, _old_web, "the isonomy command would find no REST"),
    Property(TOKEN_FILE, RM, lambda s, _c: s.get(YARN, {}).get(TOKEN_FILE, "/var/lib/isonomy/bridge.token")),
    Property(f"{_RM}recovery.enabled", RM, _true, "applications end when the ResourceManager restarts", "note"),
    Property("isonomy.scheduler.mode-dir", RM, _mode_dir, "the mode has no place: the ResourceManager keeps no state"),
    Property(f"{_RM}placement-constraints.handler", RM, _handler, "it would place GPUs past Isonomy"),
    Property(_CALCULATOR, RM, _calculator, "GPUs are not counted", file=SCHEDULER),
    Property(EXECUTOR, NM, _executor, "containers would not get the GPUs they were granted"),
    Property(f"{_NM}resource.cpu.enabled", NM, _cpu),
    Property(CONFINES, NM, _confines),
    Property(PLUGINS, NM, _plugins, "YARN's own plugin would choose other GPUs for a container than Isonomy granted"),
    Property(ENVIRONMENT, NM, _environment, "programs could choose their GPUs themselves"),
    Property(f"{_NM}recovery.enabled", NM, _true, "containers end when their NodeManager restarts", "note"),
    Property(f"{_NM}recovery.supervised", NM, _true, "an ordinary stop, as for new jars, ends its containers", "note"),
    Property(f"{_NM}address", NM, _address, "a NodeManager with recovery does not start: it needs a fixed port"),
    Property("yarn.resource-types", ALL, _types, "YARN does not know all of these resources", file=TYPES),
    Property(f"{_NM}resource-type.{GPU}", NM, _gpus, file=NODE),
)
"""All of it, in the order in which a plan changes and prints it: `_cpu` looks at the handler that CONFINES replaces."""


# ---- an installation, and the way back


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
    for row in (row for row in TABLE if row.stage <= choices.stage):
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
    plain: dict[str, str | None] = {ours: theirs for theirs, ours in OURS_OF.items() if theirs} | {OUR_HANDLER: None}
    for key, value in yarn.items():
        if key.startswith("isonomy.") or (key == WEB_KEY and value == OUR_WEB):
            yield PropertyChange(YARN, key, None, value, ALL)
        elif key == OLD_WEB_KEY and OLD_WEB in value.split(","):
            others = ",".join(v for v in value.split(",") if v != OLD_WEB)
            yield PropertyChange(YARN, key, others or None, value, RM)
        elif key == SCHEDULER_CLASS and value == OUR_SCHEDULER:
            yield PropertyChange(YARN, key, CAPACITY_SCHEDULER, value, RM)
        elif key in (EXECUTOR, CONFINES) and value in plain:
            yield PropertyChange(YARN, key, plain[value], value, NM)


def changed_texts(texts: Mapping[str, str], changes: Iterable[PropertyChange]) -> dict[str, str]:
    """{file: new text} of the files that change; missing files are created."""
    by_file: dict[str, dict[str, str | None]] = {}
    for c in changes:
        by_file.setdefault(c.file, {})[c.key] = c.new
    return {file: sitefile.edited(file, texts.get(file, sitefile.EMPTY), wanted) for file, wanted in by_file.items()}
