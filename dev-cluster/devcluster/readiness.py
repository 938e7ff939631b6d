"""Whether the roles serve yet: asked over their REST, with a deadline."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from subprocess import Popen
from typing import Any

import requests

from devcluster import kerberos
from devcluster.devcluster_error import DevClusterError
from devcluster.folder import DATANODE, KDC, NAMENODE, ZOOKEEPER, Cluster
from devcluster.processes import pid_of, tail
from pycontrol.negotiate import session

START_DEADLINE_S = 300.0
"""For all roles that start at once, on a machine that is busy with other things; one that ends is told at once."""
REQUEST_TIMEOUT_S = 5.0
POLL_S = 0.2


def wait(
    cluster: Cluster, roles: Iterable[str], started: Mapping[str, Popen[bytes]], say: Callable[[str], None]
) -> None:
    """Until these roles serve; fails with the log's tail if one ends or the deadline passes."""
    begin = time.monotonic()
    waiting = list(roles)
    while waiting:
        for role in list(waiting):
            if is_ready(cluster, role):
                waiting.remove(role)
                if role in started or time.monotonic() - begin > 1:
                    say(f"{role} is ready ({time.monotonic() - begin:.1f} s) {cluster.web(role)}")
        for role in waiting:
            code = started[role].poll() if role in started else None
            if code is not None or pid_of(cluster.layout, role) is None:
                raise _failed(cluster, role, f"ended with exit code {code}" if code else "ended")
        if waiting and time.monotonic() - begin > START_DEADLINE_S:
            raise _failed(cluster, waiting[0], f"is not ready after {START_DEADLINE_S:.0f} s")
        if waiting:
            time.sleep(POLL_S)


def _failed(cluster: Cluster, role: str, what: str) -> DevClusterError:
    log = cluster.layout.log(role)
    return DevClusterError(f"{role} {what}; the end of {log}:\n{tail(log)}")


def is_ready(cluster: Cluster, role: str) -> bool:
    """Whether a role serves now."""
    if pid_of(cluster.layout, role) is None:
        return False
    try:
        if role == NAMENODE:
            return bool(_namenode(cluster, "NameNodeInfo").get("Safemode") == "")
        if role == DATANODE:
            return bool(_namenode(cluster, "FSNamesystemState").get("NumLiveDataNodes") == 1)
        if role == KDC:
            return kerberos.serves(cluster)
        if role == ZOOKEEPER:
            return _zookeeper(cluster)
        if role in cluster.resourcemanagers:
            state = _get(cluster, f"{cluster.web(role)}/ws/v1/cluster/info")["clusterInfo"]["haState"]
            return state == "ACTIVE" or (state == "STANDBY" and cluster.options.standby)
        return _nodemanager(cluster, role)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def nodes(cluster: Cluster) -> list[dict[str, Any]]:
    """The NodeManagers as the ResourceManager lists them; one that stands by names the active one."""
    rms = [r for r in cluster.resourcemanagers if pid_of(cluster.layout, r) is not None]
    answer = _get(cluster, f"{cluster.web((rms or cluster.resourcemanagers)[0])}/ws/v1/cluster/nodes")
    return list((answer.get("nodes") or {}).get("node") or [])


def _nodemanager(cluster: Cluster, role: str) -> bool:
    """Serves, is healthy, and the ResourceManager has heard of this start of it."""
    info = _get(cluster, f"{cluster.web(role)}/ws/v1/node/info")["nodeInfo"]
    if all(pid_of(cluster.layout, r) is None for r in cluster.resourcemanagers):
        return bool(info["nodeHealthy"])
    wanted = cluster.address("nm", cluster.hosts[role])
    return bool(info["nodeHealthy"]) and any(
        n["id"] == wanted and n["state"] == "RUNNING" and n["lastHealthUpdate"] >= info["nmStartupTime"]
        for n in nodes(cluster)
    )


def _zookeeper(cluster: Cluster) -> bool:
    at = (cluster.hosts[ZOOKEEPER], cluster.ports[ZOOKEEPER])
    with socket.create_connection(at, REQUEST_TIMEOUT_S) as connection:
        connection.sendall(b"srvr")
        return b"Mode: standalone" in connection.makefile("rb").read()


def _namenode(cluster: Cluster, bean: str) -> dict[str, Any]:
    answer = _get(cluster, f"{cluster.webhdfs}/jmx?qry=Hadoop:service=NameNode,name={bean}")
    return dict(answer["beans"][0])


def _get(cluster: Cluster, url: str) -> dict[str, Any]:
    with _session(cluster) as http:
        answer = http.get(url, headers={"Accept": "application/json"}, timeout=REQUEST_TIMEOUT_S)
    answer.raise_for_status()
    value: dict[str, Any] = answer.json()
    return value


def _session(cluster: Cluster) -> requests.Session:
    made = session()
    if cluster.options.secure:
        made.auth = kerberos.login(cluster)
    return made


def make_directories(cluster: Cluster) -> None:
    """/tmp and the users' homes on HDFS."""
    user = getpass.getuser()
    others = kerberos.USERS if cluster.options.secure else ()
    for path, mode in (("/tmp", "1777"), *((f"/user/{name}", "755") for name in (user, *others))):
        _change(cluster, path, f"op=MKDIRS&permission={mode}&user.name={user}")
    for name in others:
        _change(cluster, f"/user/{name}", f"op=SETOWNER&owner={name}&user.name={user}")


def switch_on(cluster: Cluster) -> None:
    """Isonomy's mode on, by the ResourceManager that is active or becomes so."""
    path = f"/ws/v1/cluster/isonomy/mode?mode=on&user.name={getpass.getuser()}"
    begin, answer = time.monotonic(), ""
    while time.monotonic() - begin < START_DEADLINE_S:
        for role in cluster.resourcemanagers:
            try:
                with _session(cluster) as http:
                    headers = {"X-Requested-By": "dev-cluster"}
                    said = http.post(f"{cluster.web(role)}{path}", headers=headers, timeout=REQUEST_TIMEOUT_S * 4)
            except requests.RequestException as e:
                answer = str(e)
                continue
            if said.ok and said.text.startswith("{"):  # else none is active yet
                return
            answer = f"{said.status_code} {said.text[:300]}"
        time.sleep(POLL_S)
    raise DevClusterError(f"Isonomy could not be switched on: {answer}")


def _change(cluster: Cluster, path: str, query: str) -> None:
    with _session(cluster) as http:
        answer = http.put(f"{cluster.webhdfs}/webhdfs/v1{path}?{query}", timeout=REQUEST_TIMEOUT_S * 4)
    if answer.status_code != 200:
        raise DevClusterError(f"HDFS: {path} could not be made: {answer.text[:300]}")
