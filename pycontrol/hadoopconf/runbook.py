"""The run-book of an installation: by stage and class of host what to do, in which order, and how to undo it. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.sax.saxutils import escape

from pycontrol.hadoopconf.names import ISONOMY, NODE, OUR_EXECUTORS, OUR_SCHEDULER, SCHEDULER, SUBMARINE, TYPES, YARN
from pycontrol.hadoopconf.preflight import DENIES, PYTHON, cgroup, evidence
from pycontrol.hadoopconf.properties import (
    ALL,
    CONFINES,
    EXECUTOR,
    NM,
    RM,
    SCHEDULER_CLASS,
    Choices,
    PropertyChange,
    Sites,
    Stage,
    edited_sites,
    plan,
)
from pycontrol.hadoopconf.sitefile import names

_WHEEL = "python/isonomy-*.whl"
_CHECK = "with these changes in its files, as the daemon's user: isonomy preflight /etc/hadoop/conf"
_KEY = "on the second machine first: put tokens.key of the first one into /var/lib/isonomy, yarn's, mode 0600"
_BACK = "isonomy install --hadoop-conf /etc/hadoop/conf --remove --apply OUT writes the former files"

Changes = Sequence[PropertyChange]


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of distribution is administered."""

    library: str
    """The folder for jars on the class path of the daemons."""
    restart: Callable[[str], str]
    """The act that restarts resourcemanager or nodemanager on a machine."""
    text: Callable[[Changes], str]
    """The changes of one class of hosts as the tool takes them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step on one class of hosts. The next begins when it is done on all of them."""

    stage: str
    hosts: str
    changes: tuple[PropertyChange, ...]
    do: tuple[str, ...]
    """Commands and acts in their order; the changes belong before the first restart."""
    containers: str
    """What happens to running containers."""
    undo: str


def steps(sites: Sites, choices: Choices, how: Format) -> Iterator[Step]:
    """All steps from where the cluster is to the chosen stage; raises ConfigError if it is not supported."""
    at = reached(sites)
    for stage in range(min(choices.stage, at + 1), choices.stage + 1):
        if stage == Stage.QUEUE != choices.stage:
            continue  # straight to all queues
        changes = plan(sites, replace(choices, stage=Stage(stage)))
        yield from _of_stage(Stage(stage), sites, changes, choices.queues, how)
        sites = edited_sites(sites, changes)


def removal(changes: Sequence[PropertyChange], how: Format) -> Iterator[Step]:
    """The way back: the GPU nodes before the ResourceManagers, so that no GPU is without an allocator."""
    by_class = {who: tuple(c for c in changes if c.who == who) for who in (NM, ALL, RM)}
    if by_class[NM]:
        first = _gpu_nodes("remove", {}, by_class[NM], how)
        yield replace(first, do=(*_emptied(how), "remove the jar"), undo="install again")
    if by_class[ALL]:
        yield Step("remove", ALL, by_class[ALL], (_everywhere(how),), "continue", "install again")
    if by_class[RM]:
        restart = (f"{how.restart('resourcemanager')}; the standby first", "systemctl disable --now isonomy")
        yield Step("remove", RM, by_class[RM], restart, "continue", "install again")


def reached(sites: Sites) -> int:
    """The stage that the cluster's files are in, at most EXECUTORS; -1: without Isonomy."""
    yarn = sites.get(YARN, {})
    if yarn.get(SCHEDULER_CLASS) != OUR_SCHEDULER:
        return -1
    return Stage.EXECUTORS if yarn.get(EXECUTOR) in OUR_EXECUTORS else Stage.WATCH


def _of_stage(
    stage: Stage, sites: Sites, changes: Sequence[PropertyChange], queues: str, how: Format
) -> Iterator[Step]:
    yarn, said = sites.get(YARN, {}), f"{stage.name.lower()}: {stage.meaning}"
    by_class = {who: tuple(c for c in changes if c.who == who) for who in (RM, NM, ALL)}
    if stage >= Stage.QUEUE:
        yield Step(
            said,
            "gateways, where apps are submitted",
            (),
            (
                f"put {SUBMARINE} beside yarn-site.xml; in it isonomy.python is {PYTHON}",
                "unpack the archive into /opt/isonomy, Python as on the ResourceManagers",
                "export SUBMARINE_HOME=/opt/isonomy/submarine; submarine job run --help",
            ),
            "are not touched",
            f"remove {SUBMARINE} and /opt/isonomy",
        )
        yield _switch(said, queues)
    if by_class[RM]:
        yield from _resourcemanagers(said, yarn, by_class[RM], how)
    if by_class[ALL]:
        yield Step(
            said,
            "all machines: ResourceManagers, GPU nodes, CPU nodes, gateways",
            by_class[ALL],
            (_everywhere(how),),
            _recovery(yarn),
            f"{_BACK}; restart the same daemons",
        )
    if by_class[NM]:
        yield _gpu_nodes(said, yarn, by_class[NM], how)


def _resourcemanagers(
    said: str, yarn: Mapping[str, str], changes: tuple[PropertyChange, ...], how: Format
) -> Iterator[Step]:
    hosts = f"{RM} ({', '.join(rm_hosts(yarn)) or 'as the cluster knows it'})"
    yield Step(
        said,
        hosts,
        (),
        (
            f"put jars/isonomy-yarn-rm.jar of the archive into {how.library}",
            f"umask 022; python3.11 -m venv /opt/isonomy/venv; {PYTHON} -m pip install -c python/lock.txt {_WHEEL};"
            f" from the archive's wheels: {PYTHON} -m pip install --no-index --find-links python/wheelhouse {_WHEEL}",
            "ln -s /opt/isonomy/venv/bin/isonomy /usr/local/bin/",
            f"put {ISONOMY} into /etc/isonomy, and each file of systemd/ where its first line says",
            *([_KEY] if _pair(yarn) else []),
            "systemctl daemon-reload; systemctl enable --now isonomy",
        ),
        "are not touched",
        "systemctl disable --now isonomy; remove the jar",
    )
    kept = yarn.get("yarn.resourcemanager.recovery.enabled") == "true"
    yield Step(
        said,
        hosts,
        changes,
        (
            _CHECK,
            f"{how.restart('resourcemanager')}"
            + ("; the standby first, the other when it is up" if _pair(yarn) else ""),
            "isonomy mode shadow",
            "isonomy status: names the mode; yarn node -list: as many nodes as before",
        ),
        "of both kinds, with and without GPUs, continue"
        if kept
        else "and applications END: recovery was not enabled before this restart. Choose a quiet hour",
        f"{_BACK}; {how.restart('resourcemanager')}",
    )


def _isolation(yarn: Mapping[str, str]) -> tuple[str, ...]:
    """What denies containers the GPUs of others, where containers run as their users."""
    return (
        f"install -m 0755 confs/nodemanager/isonomy-devices {DENIES}",
        f"echo 'yarn ALL=(root) NOPASSWD: {DENIES}' > /etc/sudoers.d/isonomy; chmod 0440 /etc/sudoers.d/isonomy",
        f"echo 'd {cgroup(yarn, 2)} 0755 yarn hadoop' > /etc/tmpfiles.d/isonomy-nm.conf, with cgroup v1"
        f" {cgroup(yarn, 1)}; systemd-tmpfiles --create",
    )


def _gpu_nodes(said: str, yarn: Mapping[str, str], changes: tuple[PropertyChange, ...], how: Format) -> Step:
    confined = any(c.key == CONFINES and c.new for c in changes)
    return Step(
        said,
        f"{NM}, one after the other; CPU nodes and gateways stay as they are",
        changes,
        (
            f"put jars/isonomy-yarn-nm.jar into {how.library}, and Python as on the ResourceManagers; for jobs of"
            f' TensorFlow pip takes "$(echo {_WHEEL})[worker-gpu]"',
            *(_isolation(yarn) if confined else ()),
            f"put systemd/isonomy.logrotate where its first line says, for {evidence(yarn)}",
            *_emptied(how, _CHECK),
            "isonomy status: the node has an executor",
            f"nodes that autoscaling adds: confs/nodemanager/isonomy-bootstrap ARCHIVE SETTINGS {cgroup(yarn, 2)}",
        ),
        "end by themselves before the restart: the node is emptied, since YARN's plugin and Isonomy's executor do not"
        " know each other's GPUs",
        f"empty the node in the same way; {_BACK}; {how.restart('nodemanager')}",
    )


def _emptied(how: Format, *first: str) -> tuple[str, ...]:
    """A restart of a NodeManager on which no container is left, after what is to do first."""
    return (
        "empty the node: its name into the file of yarn.resourcemanager.nodes.exclude-path; yarn rmadmin"
        " -refreshNodes -g -1 -server; yarn node -list -all says when it is DECOMMISSIONED",
        *first,
        how.restart("nodemanager"),
        "its name out of that file; yarn rmadmin -refreshNodes",
    )


def _switch(said: str, queues: str) -> Step:
    return Step(
        said,
        "anywhere, as an admin of YARN",
        (),
        (f"isonomy mode on --queues {queues}", "isonomy status; isonomy queue"),
        "of both kinds continue. Isonomy takes over these queues' waiting asks for GPUs; a node whose GPUs plain"
        " containers hold gets leases when these have ended",
        "isonomy mode shadow: CapacityScheduler takes the waiting asks back, leased containers continue",
    )


def _everywhere(how: Format) -> str:
    """The restarts for a file that all daemons read; the GPU nodes have theirs in a step of their own."""
    return f"ResourceManagers: {how.restart('resourcemanager')}; CPU nodes: {how.restart('nodemanager')}"


def _recovery(yarn: Mapping[str, str]) -> str:
    nm = "yarn.nodemanager.recovery."
    if yarn.get(f"{nm}enabled") != "true":
        return "END with their NodeManager: recovery was not enabled before this restart"
    if yarn.get(f"{nm}supervised") != "true":
        return "END at an ordinary stop: recovery.supervised was not set before. After kill -9 they continue"
    return "continue"


def _pair(yarn: Mapping[str, str]) -> bool:
    return yarn.get("yarn.resourcemanager.ha.enabled") == "true"


def rm_hosts(yarn: Mapping[str, str]) -> list[str]:
    """The hosts of the ResourceManagers, as far as yarn-site.xml names them."""
    ids = [f".{i}" for i in names(yarn.get("yarn.resourcemanager.ha.rm-ids", ""))] if _pair(yarn) else [""]
    keys = ("hostname", "webapp.address", "webapp.https.address", "address")
    found = (next((v for k in keys if (v := yarn.get(f"yarn.resourcemanager.{k}{i}"))), "") for i in ids)
    return [address.rpartition(":")[0] or address for address in found if address and "$" not in address]


# ---- as an administrator's tools take it: files, Cloudera Manager, Ambari, EMR, Dataproc


def _by_file(changes: Changes) -> dict[str, dict[str, str]]:
    """{file: {key: value}}, with types and node resources in yarn-site.xml, where YARN reads them as well."""
    found: dict[str, dict[str, str]] = {}
    for c in changes:
        file = "yarn-site.xml" if c.file in (TYPES, NODE) else c.file
        found.setdefault(file.removesuffix(".xml"), {})[c.key] = c.new or ""
    return found


def _diff(changes: Changes) -> str:
    lines: list[str] = []
    for file in sorted({c.file for c in changes}):
        lines.append(f"{file} ({changes[0].who})")
        for c in (c for c in changes if c.file == file):
            lines += [f"  {sign} {c.key} = {v}" for sign, v in (("-", c.old), ("+", c.new)) if v is not None]
    return "\n".join(lines)


_VALVES = {
    RM: "resourcemanager_config_safety_valve",
    NM: "nodemanager_config_safety_valve",
    ALL: "yarn_service_config_safety_valve",
}


def _cloudera(changes: Changes) -> str:
    """Advanced configuration snippets as its API takes them, for a role group (GPU nodes: one of their own)."""
    items = []
    for file, site in _by_file(changes).items():
        snippet = "".join(
            f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in site.items()
        )
        queues = f"{file}.xml" == SCHEDULER
        name = "resourcemanager_capacity_scheduler_configuration" if queues else _VALVES[changes[0].who]
        items.append({"name": name, "value": snippet})
    return json.dumps({"items": items}, indent=2)


def _listed(changes: Changes, file: str, site: str) -> list[dict[str, Any]]:
    """An entry a file, which names it and has its properties by these words."""
    return [{file: name, site: properties} for name, properties in _by_file(changes).items()]


def _dataproc(changes: Changes) -> str:
    """--properties of the cluster; for GPU nodes, which those do not single out, lines of an initialization action."""
    found = _by_file(changes)
    if changes[0].who == NM:
        tool = "bdconfig set_property --clobber --configuration_file /etc/hadoop/conf"
        return "\n".join(
            f"{tool}/{file}.xml --name {shlex.quote(k)} --value {shlex.quote(v)}"
            for file, site in found.items()
            for k, v in site.items()
        )
    words = [f"{file.removesuffix('-site')}:{k}={v}" for file, site in found.items() for k, v in site.items()]
    return f"--properties={shlex.quote('^#^' + '#'.join(words))}"


_SYSTEMD = "systemctl restart hadoop-yarn-{}".format
_BIGTOP = "/usr/lib/hadoop-yarn/lib"
FORMATS = {
    "files": Format("$HADOOP_HOME/share/hadoop/yarn/lib (EMR, Bigtop: /usr/lib/hadoop-yarn/lib)", _SYSTEMD, _diff),
    "cm": Format(
        "/opt/isonomy/jars, and YARN_USER_CLASSPATH=/opt/isonomy/jars/* into the role's environment snippet (a parcel"
        " loses foreign jars when it is upgraded)",
        "Cloudera Manager: deploy the client configuration, restart the role {}".format,
        _cloudera,
    ),
    "ambari": Format(
        "/usr/hdp/current/hadoop-yarn-client/lib",
        "Ambari: restart the component {}".format,
        lambda c: json.dumps({"desired_config": _listed(c, "type", "properties")}, indent=2),
    ),
    "emr": Format(_BIGTOP, _SYSTEMD, lambda c: json.dumps(_listed(c, "Classification", "Properties"), indent=2)),
    "dataproc": Format(_BIGTOP, _SYSTEMD, _dataproc),
}
"""Name of --format -> how it is done there. Ambari's and EMR's go to a group of hosts, GPU nodes to one of their own;
nodes that autoscaling adds have EMR's classifications, too."""
