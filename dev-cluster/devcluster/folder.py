"""Where things lie below a cluster's directory, and cluster.json, which describes the cluster to others."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from devcluster import REPO
from devcluster.devcluster_error import DevClusterError
from pycontrol.config import TopologySpec, load_topology_spec

BUILD = REPO / "build"
HADOOP = "3.5.0"
"""The version of dev-cluster/pom.xml, which runs unless another one is asked for."""
LOCALHOST = "127.0.0.1"
NAMENODE, DATANODE, RESOURCEMANAGER = "namenode", "datanode", "resourcemanager"
STANDBY, ZOOKEEPER, KDC = "resourcemanager-2", "zookeeper", "kdc"
STANDBY_HOST = "127.0.9.2"
"""The second ResourceManager and its control plane have the ports of the first, on this address."""
ALIASES = {"nn": NAMENODE, "dn": DATANODE, "rm": RESOURCEMANAGER, "rm-2": STANDBY, "zk": ZOOKEEPER}


@dataclass(frozen=True)
class Options:
    """How the cluster was asked to be; kept for a later `up`."""

    plain: bool = False
    off: bool = False
    gpus: str = "virtual"
    standby: bool = False
    secure: bool = False
    hadoop: str = HADOOP
    java: str = ""
    """JAVA_HOME of daemons and containers; empty: as clients."""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The paths of one cluster."""

    root: Path

    @property
    def conf(self) -> Path:
        """HADOOP_CONF_DIR of clients, HDFS and ResourceManager."""
        return self.root / "conf"

    def conf_of(self, role: str) -> Path:
        """The role's own configuration directory."""
        if role.startswith("nodemanager"):
            return self.root / "conf-nodemanagers" / role
        return self.root / f"conf-{STANDBY}" if role == STANDBY else self.conf

    @property
    def data(self) -> Path:
        """State of all roles."""
        return self.root / "data"

    @property
    def isonomy(self) -> Path:
        """State of the control plane."""
        return self.root / "isonomy"

    @property
    def isonomy_2(self) -> Path:
        """State of the control plane beside the second ResourceManager."""
        return self.root / "isonomy-2"

    @property
    def topology(self) -> Path:
        """The topology file, as the control plane reads it."""
        return self.conf / "topology.yaml"

    @property
    def description(self) -> Path:
        """cluster.json."""
        return self.root / "cluster.json"

    def log(self, role: str) -> Path:
        """The role's log."""
        return self.root / "log" / f"{role}.log"

    def pid_file(self, role: str) -> Path:
        """The role's process id and start time."""
        return self.root / "run" / f"{role}.pid"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One command at a time changes a cluster."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DevClusterError(f"another dev-cluster command is at work in {self.root}; wait") from None
            yield


@dataclass
class Cluster:
    """A cluster as it is configured."""

    layout: Layout
    options: Options
    ports: dict[str, int]
    spec: TopologySpec
    hosts: dict[str, str] = field(default_factory=dict)
    """Address by role."""

    def __post_init__(self) -> None:
        self.hosts = {KDC: LOCALHOST} if self.options.secure else {}
        self.hosts |= {NAMENODE: LOCALHOST, DATANODE: LOCALHOST, RESOURCEMANAGER: LOCALHOST}
        if self.options.standby:
            self.hosts |= {ZOOKEEPER: LOCALHOST, STANDBY: STANDBY_HOST}
        self.hosts |= {f"nodemanager-{i}": m.host for i, m in enumerate(self.spec.machines)}

    @property
    def roles(self) -> list[str]:
        """All roles, in the order of their start."""
        return list(self.hosts)

    @property
    def nodemanagers(self) -> list[str]:
        """The NodeManagers' roles, in the topology's order."""
        return [r for r in self.roles if r.startswith("nodemanager")]

    @property
    def resourcemanagers(self) -> list[str]:
        """One, or a pair."""
        return [r for r in self.roles if r in (RESOURCEMANAGER, STANDBY)]

    def role(self, name: str) -> str:
        """A role by its name or a short one: rm, nn, dn, nm-0."""
        role = ALIASES.get(name, name)
        role = f"nodemanager-{role[3:]}" if role.startswith("nm-") else role
        if role not in self.hosts:
            raise DevClusterError(f"no role {name}; roles are {', '.join(self.roles)}")
        return role

    def address(self, port: str, host: str = LOCALHOST) -> str:
        """host:port of a service."""
        return f"{host}:{self.ports[port]}"

    @property
    def jars(self) -> Path:
        """Hadoop's: lib, and client-extra for clients and containers only."""
        return jars_of(self.options.hadoop)

    @property
    def rm_web(self) -> str:
        """URL of the ResourceManager's web app; of a pair both, joined by a comma."""
        return ",".join(self.web(r) for r in self.resourcemanagers)

    @property
    def webhdfs(self) -> str:
        """URL of the NameNode's web app."""
        return f"http://{self.address('namenode_web')}"

    def web(self, role: str) -> str:
        """URL of a role's web app."""
        port = {
            NAMENODE: "namenode_web",
            DATANODE: "datanode_web",
            RESOURCEMANAGER: "rm_web",
            STANDBY: "rm_web",
            ZOOKEEPER: ZOOKEEPER,
            KDC: KDC,
        }.get(role, "nm_web")
        return f"http://{self.address(port, self.hosts[role])}"

    def save(self, pids: dict[str, int | None], java_home: str, env: Mapping[str, str]) -> None:
        """Writes cluster.json."""
        lib, extra = self.jars / "lib", self.jars / "client-extra"
        value = {
            "dir": str(self.layout.root),
            "conf": str(self.layout.conf),
            "hadoop_jars": str(lib),
            "client_jars": str(extra),
            "client_classpath": f"{self.layout.conf}:{lib}/*:{extra}/*",
            "rm_web": self.rm_web,
            "rm_address": self.address("rm"),
            "webhdfs": self.webhdfs,
            "fs": f"hdfs://{self.address('namenode_rpc')}",
            "roles": {
                r: {
                    "pid": pids.get(r),
                    "host": self.hosts[r],
                    "log": str(self.layout.log(r)),
                    "web": self.web(r),
                    "data": str(self.layout.data / r),
                }
                for r in self.roles
            },
            "topology": str(self.layout.topology),
            "isonomy_yaml": str(self.layout.conf / "isonomy.yaml"),
            "isonomy_yamls": [str(self.layout.conf_of(r) / "isonomy.yaml") for r in self.resourcemanagers],
            "python": sys.executable,
            "user": getpass.getuser(),
            "env": {"HADOOP_CONF_DIR": str(self.layout.conf), "JAVA_HOME": java_home, **env},
            "ports": self.ports,
            "options": asdict(self.options),
        }
        part = self.layout.description.with_suffix(".part")
        part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        os.replace(part, self.layout.description)


def jars_of(hadoop: str) -> Path:
    """Where the jars of a version lie."""
    return BUILD / ("hadoop" if hadoop == HADOOP else f"hadoop-{hadoop}")


def load(layout: Layout) -> Cluster | None:
    """The cluster that cluster.json describes; None where there is none. Another version may have had other options."""
    if not layout.description.exists():
        return None
    try:
        value = json.loads(layout.description.read_text(encoding="utf-8"))
        known = {f.name: value["options"][f.name] for f in fields(Options) if f.name in value["options"]}
        options = Options(**{**known, "settings": tuple(known["settings"])})
        return Cluster(layout, options, value["ports"], load_topology_spec(layout.topology))
    except (ValueError, KeyError, TypeError) as error:
        raise DevClusterError(f"{layout.description}: cannot be understood ({error}); remove it") from error
