"""Ports that are free on every address that the cluster uses."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from devcluster.devcluster_error import DevClusterError
from devcluster.folder import LOCALHOST, STANDBY_HOST

LOCAL = (
    "namenode_rpc",
    "namenode_web",
    "datanode",
    "datanode_ipc",
    "datanode_web",
    "rm",
    "rm_scheduler",
    "rm_tracker",
    "rm_admin",
    "rm_web",
    "bridge",
    "agents",
    "zookeeper",
    "kdc",
)
NODEMANAGER = ("nm", "nm_localizer", "nm_web")
"""The same numbers on each NodeManager's own address."""


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose(hosts: Iterable[str]) -> dict[str, int]:
    """Free ports below the range from which the kernel takes those of outgoing connections."""
    addresses = list(hosts)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(10240, lowest)) if lowest > 12000 else list(range(20000, 65000))
    random.SystemRandom().shuffle(candidates)
    ports: dict[str, int] = {}
    for name in LOCAL + NODEMANAGER:
        where = addresses if name in NODEMANAGER else [LOCALHOST, STANDBY_HOST]
        while candidates:
            port = candidates.pop()
            if all(is_free(host, port) for host in where):
                ports[name] = port
                break
        else:
            raise DevClusterError("no free port is left on this machine")
    return ports


def taken(ports: dict[str, int], hosts: Iterable[str]) -> list[str]:
    """Those on which something listens, or that `ports` lacks."""
    addresses = list(hosts)
    return [
        name
        for name in LOCAL + NODEMANAGER
        if name not in ports
        or not all(is_free(h, ports[name]) for h in (addresses if name in NODEMANAGER else [LOCALHOST, STANDBY_HOST]))
    ]


def check_host(host: str) -> None:
    """A NodeManager's host must be a loopback address that has no other name here."""
    try:
        loopback = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback or not is_free(host, 0):
        raise DevClusterError(f"topology: host {host} must be a loopback address of this machine (127.x.y.z)")
    name = socket.getnameinfo((host, 0), 0)[0]
    if name != host:
        raise DevClusterError(f"topology: host {host} is called {name} here; use an address without a name")
