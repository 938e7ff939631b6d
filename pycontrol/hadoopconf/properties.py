"""What Isonomy needs of Hadoop's files, one row a property: the plan writes it, the check compares with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from pycontrol.config import ConfigError
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import (
    DOMINANT,
    GPU,
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

Sites = Mapping[str, Mapping[str, str]]
"""Properties by file."""
CAPACITY_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
SCHEDULER_CLASS = "yarn.resourcemanager.scheduler.class"
EXECUTOR, PLUGINS = "yarn.nodemanager.container-executor.class", "yarn.nodemanager.resource-plugins"
STORE = "yarn.scheduler.configuration.store.class"
NM_PORT = "45454"
_RM, _NM = "yarn.resourcemanager.", "yarn.nodemanager."
TOKEN_FILE = "isonomy.bridge.token-file"
CONFINES = f"{_NM}linux-container-executor.resources-handler.class"
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
    """The ResourceManagers alone: CapacityScheduler and YARN's GPU plugin go on, Isonomy watches."""
    EXECUTORS = 1
    """The GPU nodes have Isonomy's executor."""
    QUEUE = 2
    """Isonomy serves the named queues."""
    ALL = 3
    """Isonomy serves all queues."""


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


def plan_rows(stage: Stage) -> list[Property]:
    """The properties of a stage."""
    return [row for row in TABLE if row.stage <= stage]


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


def names(text: str) -> list[str]:
    """The names of a list with commas."""
    return [n.strip() for n in text.split(",") if n.strip()]


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
    return "isonomy.nm.GpuDevices" if _executor(sites, choices) == LINUX_EXECUTOR else found


def _cpu(sites: Sites, _choices: Choices) -> str | None:
    """What a former handler of cgroups did beside: it limited CPUs."""
    yarn = sites.get(YARN, {})
    former = yarn.get(CONFINES, "").endswith(".CgroupsLCEResourcesHandler")
    return "true" if former else yarn.get(f"{_NM}resource.cpu.enabled")


def _plugins(sites: Sites, _choices: Choices) -> str | None:
    found = sites.get(YARN, {}).get(PLUGINS)
    if GPU not in names(found or ""):
        return found
    return ",".join(p for p in names(found or "") if p != GPU) or None


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


def _environment(sites: Sites, _choices: Choices) -> str | None:
    found = sites.get(YARN, {}).get("yarn.nodemanager.env-whitelist")
    if "CUDA_VISIBLE_DEVICES" not in names(found or ""):
        return found
    return ",".join(n for n in names(found or "") if n != "CUDA_VISIBLE_DEVICES")


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
    Property(CONFINES, NM, _confines),
    Property(f"{_NM}resource.cpu.enabled", NM, _cpu),
    Property(PLUGINS, NM, _plugins, "YARN's own plugin would choose other GPUs for a container than Isonomy granted"),
    Property(f"{_NM}env-whitelist", NM, _environment, "programs could choose their GPUs themselves"),
    Property(f"{_NM}recovery.enabled", NM, _true, "containers end when their NodeManager restarts", "note"),
    Property(f"{_NM}recovery.supervised", NM, _true, "an ordinary stop, as for new jars, ends its containers", "note"),
    Property(f"{_NM}address", NM, _address, "a NodeManager with recovery does not start: it needs a fixed port"),
    Property("yarn.resource-types", ALL, _types, "YARN does not know all of these resources", file=TYPES),
    Property(f"{_NM}resource-type.{GPU}", NM, _gpus, file=NODE),
)
"""All of it, in the order in which a plan prints it."""
