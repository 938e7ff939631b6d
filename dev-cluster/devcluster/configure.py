"""Renders the cluster's configuration from the templates that a real cluster uses."""

from __future__ import annotations

import getpass
import sys
from typing import Any

import yaml

from devcluster import REPO, kerberos
from devcluster.folder import LOCALHOST, RESOURCEMANAGER, STANDBY, STANDBY_HOST, ZOOKEEPER, Cluster
from devcluster.processes import ZOO_CFG
from pycontrol.config import MachineSpec
from pycontrol.hadoopconf import render

_EMPTY_WEB_XML = '<web-app xmlns="http://java.sun.com/xml/ns/javaee" version="3.0"/>\n'


def configure(cluster: Cluster) -> None:
    """Writes conf, each NodeManager's conf and the empty HDFS web apps."""
    layout = cluster.layout
    if cluster.options.secure:
        kerberos.prepare(cluster)
    shared = _shared(cluster)
    settings = render.parse_set(cluster.options.settings)
    render.write(render.render(_over(shared, settings)), layout.conf)
    layout.topology.write_text(yaml.safe_dump(cluster.spec.model_dump(), sort_keys=False), encoding="utf-8")
    if cluster.options.standby:
        _standby(cluster, shared, settings)
    for role, machine in zip(cluster.nodemanagers, cluster.spec.machines, strict=True):
        values = _over(shared, {"nodemanager": _nodemanager(cluster, role, machine)})
        render.write(render.render(_over(values, settings)), layout.conf_of(role))
    # The HDFS web app is not in the jars: empty ones do, WebHDFS and JMX are code.
    for app in ("hdfs", "datanode"):
        web_inf = layout.root / "web" / "webapps" / app / "WEB-INF"
        web_inf.mkdir(parents=True, exist_ok=True)
        (web_inf / "web.xml").write_text(_EMPTY_WEB_XML, encoding="utf-8")
    (layout.root / "web" / "webapps" / "static").mkdir(exist_ok=True)
    for folder in ("log", "run", "tmp", "data"):
        (layout.root / folder).mkdir(exist_ok=True)
    layout.isonomy.mkdir(mode=0o700, exist_ok=True)


def _over(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**base, **{k: {**base.get(k, {}), **v} for k, v in more.items()}}


def _standby(cluster: Cluster, shared: dict[str, Any], settings: Any) -> None:
    """The second ResourceManager's configuration and its control plane's; the ZooKeeper's."""
    layout = cluster.layout
    own = {
        "yarn": {"rm_id": "rm2"},
        "isonomy": {
            "state_dir": str(layout.isonomy_2),
            "agents_host": STANDBY_HOST,
            "bridge_host": STANDBY_HOST,
            "bridge_token_file": str(layout.isonomy_2 / "bridge.token"),
        },
    }
    render.write(render.render(_over(_over(shared, own), settings)), layout.conf_of(STANDBY))
    (layout.root / ZOO_CFG).write_text(
        f"dataDir={layout.data / ZOOKEEPER}\nclientPort={cluster.ports[ZOOKEEPER]}\nclientPortAddress={LOCALHOST}\n"
        "tickTime=500\nadmin.enableServer=false\n",
        encoding="utf-8",
    )
    layout.isonomy_2.mkdir(mode=0o700, exist_ok=True)


def _shared(cluster: Cluster) -> dict[str, Any]:
    """What holds on all machines."""
    layout, at = cluster.layout, cluster.address
    return {
        "core": {
            "conf_dir": str(layout.conf),
            "fs_uri": f"hdfs://{at('namenode_rpc')}",
            "tmp_dir": str(layout.root / "tmp"),
            "racks": {m.host: rack.name for rack in cluster.spec.racks for m in rack.machines},
        },
        "security": kerberos.settings(cluster) if cluster.options.secure else {},
        "hdfs": _hdfs(cluster),
        "yarn": _yarn(cluster),
        "submarine": {
            "python": sys.executable,
            "am_jar": str(REPO / "submarine_patch/java/am/target/isonomy-am.jar"),
        },
        "isonomy": _isonomy(cluster),
    }


def _hdfs(cluster: Cluster) -> dict[str, Any]:
    layout, at = cluster.layout, cluster.address
    return {
        "namenode_rpc": at("namenode_rpc"),
        "namenode_web": at("namenode_web"),
        "namenode_dir": f"file://{layout.data}/namenode",
        "safemode_extension_ms": 0,
        "datanode_host": LOCALHOST,
        "datanode_address": at("datanode"),
        "datanode_ipc": at("datanode_ipc"),
        "datanode_web": at("datanode_web"),
        "datanode_dir": f"file://{layout.data}/datanode",
        "replication": 1,
        "close_retry_ms": 10,
        "close_retries": 11,
    }


def _yarn(cluster: Cluster) -> dict[str, Any]:
    layout, at, machines, pair = cluster.layout, cluster.address, cluster.spec.machines, cluster.options.standby
    jars = cluster.jars
    return {
        "scheduler": "capacity" if cluster.options.plain else "isonomy",
        "hadoop": ".".join(cluster.options.hadoop.split(".")[:2]),
        "admin_acl": getpass.getuser(),
        "rm_host": LOCALHOST,
        "rm_address": at("rm"),
        "rm_scheduler_address": at("rm_scheduler"),
        "rm_tracker_address": at("rm_tracker"),
        "rm_admin_address": at("rm_admin"),
        "rm_web": at("rm_web"),
        "rm_state_dir": f"file://{layout.data}/{RESOURCEMANAGER}",
        "rm_hosts": {"rm1": LOCALHOST, "rm2": STANDBY_HOST} if pair else {},
        "rm_id": "rm1" if pair else None,
        "zookeeper": at(ZOOKEEPER),
        "zookeeper_timeout_ms": 4000,
        "rm_recovery_wait_ms": 5000,
        "node_expiry_ms": 10000,
        "am_expiry_ms": 60000,
        "max_allocation_mb": max(m.memory_mb for m in machines),
        "max_allocation_vcores": max(m.vcores for m in machines),
        "application_classpath": f"{layout.conf},{jars}/lib/*,{jars}/client-extra/*",
    }


def _isonomy(cluster: Cluster) -> dict[str, Any]:
    layout, at, user, pair = cluster.layout, cluster.address, getpass.getuser(), cluster.options.standby
    return {
        "topology": str(layout.topology),
        "state_dir": str(layout.isonomy),
        "bridge_port": cluster.ports["bridge"],
        "bridge_token_file": str(layout.isonomy / "bridge.token"),
        "agents_host": LOCALHOST,
        "agents_port": cluster.ports["agents"],
        "agents_advertise": ",".join(at("agents", cluster.hosts[rm]) for rm in cluster.resourcemanagers),
        "standby_webhdfs": cluster.webhdfs if pair else None,
        "standby_every_s": 2 if pair else 60,
        "tokens_webhdfs": cluster.webhdfs if cluster.options.secure else None,
        "tokens_principal": kerberos.principal(kerberos.PROXY),
        "tokens_keytab": str(kerberos.keytab(cluster)),
        "standby_principal": kerberos.principal(user) if pair and cluster.options.secure else None,
        "standby_keytab": str(kerberos.keytab(cluster)) if pair and cluster.options.secure else None,
    }


def _nodemanager(cluster: Cluster, role: str, machine: MachineSpec) -> dict[str, Any]:
    data, host = cluster.layout.data / role, machine.host
    return {
        "host": host,
        "address": cluster.address("nm", host),
        "web": cluster.address("nm_web", host),
        "localizer_address": cluster.address("nm_localizer", host),
        "local_dirs": str(data / "local"),
        "log_dirs": str(data / "log"),
        "recovery_dir": str(data / "recovery"),
        "evidence_file": str(data / "isonomy-evidence.jsonl"),
        "memory_mb": machine.memory_mb,
        "vcores": machine.vcores,
        "gpus": machine.gpus,
        "gpu_type": machine.type if cluster.spec.virtual_gpus else "",
        "gpu_speed": cluster.spec.speeds.get(machine.type, 1.0) if cluster.spec.virtual_gpus else 1.0,
        "delete_delay_s": 600,
        "disk_limit_percent": 99.5,
    }
