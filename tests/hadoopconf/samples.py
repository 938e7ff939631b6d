"""Configurations like those of production clusters: keys and values of three distributions, not their files."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

Sites = Mapping[str, Mapping[str, str]]

_CAPACITY = "yarn.scheduler.capacity."
_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
_DEFAULT_CALCULATOR = "org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator"
_LINUX = "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor"

BIGTOP: Sites = {
    "core-site.xml": {
        "fs.defaultFS": "hdfs://nn1.example.org:8020",
        "hadoop.proxyuser.hue.hosts": "*",
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hadoop.security.auth_to_local": "RULE:[2:$1@$0]((nn|dn)@EXAMPLE.ORG)s/.*/hdfs/\nDEFAULT",
    },
    "hdfs-site.xml": {
        "dfs.namenode.kerberos.principal": "hdfs/_HOST@EXAMPLE.ORG",
        "dfs.namenode.keytab.file": "/etc/hdfs.keytab",
        "dfs.datanode.kerberos.principal": "hdfs/_HOST@EXAMPLE.ORG",
        "dfs.datanode.keytab.file": "/etc/hdfs.keytab",
        "dfs.data.transfer.protection": "privacy",
    },
    "yarn-site.xml": {
        "yarn.resourcemanager.hostname": "rm1.example.org",
        "yarn.resourcemanager.principal": "yarn/_HOST@EXAMPLE.ORG",
        "yarn.resourcemanager.keytab": "/etc/yarn.keytab",
        "yarn.nodemanager.principal": "yarn/_HOST@EXAMPLE.ORG",
        "yarn.nodemanager.keytab": "/etc/yarn.keytab",
        "yarn.resourcemanager.scheduler.class": _SCHEDULER,
        "yarn.nodemanager.container-executor.class": _LINUX,
        "yarn.nodemanager.linux-container-executor.group": "yarn",
        "yarn.nodemanager.resource-plugins": "yarn.io/gpu",
        "yarn.nodemanager.runtime.linux.allowed-runtimes": "default,docker",
        "yarn.nodemanager.recovery.enabled": "true",
        "yarn.nodemanager.address": "0.0.0.0:0",
        "yarn.node-labels.enabled": "true",
        "yarn.acl.enable": "true",
        "yarn.admin.acl": "yarn,ops",
    },
    "capacity-scheduler.xml": {
        f"{_CAPACITY}resource-calculator": _DEFAULT_CALCULATOR,
        f"{_CAPACITY}root.queues": "default,research",
        f"{_CAPACITY}root.default.capacity": "40",
        f"{_CAPACITY}root.default.user-limit-factor": "1",
        f"{_CAPACITY}root.research.capacity": "60",
        f"{_CAPACITY}root.research.maximum-capacity": "100",
        f"{_CAPACITY}root.research.accessible-node-labels": "gpu",
    },
    "resource-types.xml": {"yarn.resource-types": "yarn.io/gpu"},
}
"""Kerberos, LinuxContainerExecutor, YARN's own GPU plugin, node labels."""

EMR: Sites = {
    "core-site.xml": {"fs.defaultFS": "hdfs://ip-10-0-0-1.ec2.internal:8020", "io.file.buffer.size": "65536"},
    "hdfs-site.xml": {"dfs.replication": "2"},
    "yarn-site.xml": {
        "yarn.resourcemanager.hostname": "ip-10-0-0-1.ec2.internal",
        "yarn.resourcemanager.scheduler.class": _SCHEDULER,
        "yarn.nodemanager.container-executor.class": _LINUX,
        "yarn.nodemanager.linux-container-executor.group": "yarn",
        "yarn.nodemanager.address": "${yarn.nodemanager.hostname}:8041",
        "yarn.nodemanager.recovery.enabled": "true",
        "yarn.nodemanager.resource-plugins": "yarn.io/gpu",
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.am.default-node-label-expression": "CORE",
        "yarn.resourcemanager.placement-constraints.handler": "placement-processor",
        "yarn.resourcemanager.opportunistic-container-allocation.enabled": "true",
    },
    "capacity-scheduler.xml": {
        f"{_CAPACITY}resource-calculator": _DEFAULT_CALCULATOR,
        f"{_CAPACITY}root.queues": "default",
        f"{_CAPACITY}root.default.capacity": "100",
        f"{_CAPACITY}root.default.accessible-node-labels": "*",
    },
    "resource-types.xml": {"yarn.resource-types": "yarn.io/gpu"},
}
"""As a cloud's Hadoop 3.4: simple authentication, labels for its kinds of machines."""

DATAPROC: Sites = {
    "core-site.xml": {"fs.defaultFS": "hdfs://cluster-m", "hadoop.proxyuser.hive.hosts": "*"},
    "hdfs-site.xml": {"dfs.namenode.http-address": "0.0.0.0:9870"},
    "yarn-site.xml": {
        "yarn.resourcemanager.hostname": "cluster-m",
        "yarn.resourcemanager.scheduler.class": _SCHEDULER,
        "yarn.nodemanager.recovery.enabled": "true",
        "yarn.nodemanager.address": "0.0.0.0:8026",
        "yarn.scheduler.configuration.store.class": "zk",
        "yarn.federation.enabled": "true",
        "yarn.scheduler.fair.allocation.file": "/etc/hadoop/conf/fair-scheduler.xml",
    },
    "capacity-scheduler.xml": {
        f"{_CAPACITY}resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        f"{_CAPACITY}root.queues": "default",
        f"{_CAPACITY}root.default.capacity": "100",
        f"{_CAPACITY}root.default.user-limit-factor": "-1",
    },
}
"""As a cloud's Hadoop 3.3: no resource types, DefaultContainerExecutor, leftovers of FairScheduler."""

ALL = {"bigtop": BIGTOP, "emr": EMR, "dataproc": DATAPROC}


def write(sites: Sites, folder: Path) -> Path:
    """The files, as a distribution would have written them: with comments and its own indentation."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, site in sites.items():
        rows = "\n".join(
            f"    <property>\n        <name>{escape(k)}</name>\n        <value>{escape(v)}</value>\n    </property>"
            for k, v in site.items()
        )
        text = f'<?xml version="1.0"?>\n<!-- managed; {file} -->\n<configuration>\n{rows}\n</configuration>\n'
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def pem(file: Path) -> Path:
    """A certificate and its key in one file, which only its owner may read."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = subprocess.run([*command, "-subj", "/CN=x", "-keyout", "-"], capture_output=True, text=True, check=True)
    file.touch(0o600)
    file.write_text(made.stdout)
    return file
