"""The connections between the cluster's parties, and proxies for them.

The daemons are moved to hidden loopback addresses (127.1.y.z for 127.0.y.z), on the same ports; the proxies have the
addresses in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.proxy import Proxy

LOCALHOST = "127.0.0.1"
PAIRS = {
    "clients-rm": ("rm",),
    "am-rm": ("rm_scheduler",),
    "nm-rm": ("rm_tracker",),
    "hdfs-namenode": ("namenode_rpc",),
    "hdfs-datanode": ("datanode", "datanode_web"),
}
"""Links by the ports of cluster.json that make them; the NodeManagers' are `am-nm` (of one of them)."""
UNDISTURBED = ("rm_admin", "rm_web", "namenode_web", "datanode_ipc")
"""The run watches the cluster through the web addresses; Agents and workers have a WebHDFS address of their own."""


def hidden(host: str) -> str:
    """The hidden address of the daemon with this public address."""
    return host.replace("127.0.", "127.1.", 1)


def set_properties(file: Path, values: Mapping[str, str]) -> None:
    """The last value of a property in a file is the one that counts."""
    more = "".join(f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in values.items())
    file.write_text(file.read_text().replace("</configuration>", more + "</configuration>"))


def hide(cluster: Mapping[str, Any]) -> None:
    """Writes the hidden addresses into the configuration; the daemons must be started (again) afterwards."""
    conf, ports, behind = Path(cluster["conf"]), cluster["ports"], hidden(LOCALHOST)
    set_properties(conf / "yarn-site.xml", {"yarn.resourcemanager.bind-host": behind})
    set_properties(
        conf / "hdfs-site.xml",
        {
            "dfs.namenode.rpc-bind-host": behind,
            "dfs.namenode.http-bind-host": behind,
            "dfs.datanode.address": f"{behind}:{ports['datanode']}",
            "dfs.datanode.ipc.address": f"{behind}:{ports['datanode_ipc']}",
            "dfs.datanode.http.address": f"{behind}:{ports['datanode_web']}",
        },
    )
    for role, about in cluster["roles"].items():
        if role.startswith("nodemanager"):
            file = Path(cluster["dir"]) / "conf-nodemanagers" / role / "yarn-site.xml"
            set_properties(file, {"yarn.nodemanager.bind-host": hidden(about["host"])})


class Link:
    """Proxies that share their faults."""

    def __init__(self, *proxies: Proxy) -> None:
        self.proxies = proxies

    def each(self, act: Callable[[Proxy], object]) -> None:
        """Applies a function to all proxies."""
        for proxy in self.proxies:
            act(proxy)

    @property
    def connections(self) -> int:
        """The number of connections."""
        return sum(p.connections for p in self.proxies)


def between(cluster: Mapping[str, Any]) -> tuple[dict[str, list[Link]], list[Proxy]]:
    """The links of the hidden daemons, of `am-nm` one for each NodeManager, and the other proxies; none has started."""
    ports = cluster["ports"]

    def proxies(names: Iterable[str], host: str = LOCALHOST) -> list[Proxy]:
        return [Proxy((hidden(host), ports[n]), ports[n], host=host) for n in names]

    links = {name: [Link(*proxies(of))] for name, of in PAIRS.items()}
    hosts = [about["host"] for role, about in cluster["roles"].items() if role.startswith("nodemanager")]
    links["am-nm"] = [Link(*proxies(["nm"], host)) for host in hosts]
    rest = proxies(UNDISTURBED) + [p for host in hosts for p in proxies(["nm_localizer", "nm_web"], host)]
    return links, rest
