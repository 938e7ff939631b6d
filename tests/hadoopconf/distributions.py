"""Configurations as three distributions deliver them for GPUs: by the vendors' public documents and defaults."""

from __future__ import annotations

from tests.hadoopconf.samples import Sites

_RM, _NM = "yarn.resourcemanager.", "yarn.nodemanager."
_Q = "yarn.scheduler.capacity."
_LCE = f"{_NM}linux-container-executor."
_SERVER = "org.apache.hadoop.yarn.server."
_CAPACITY = {f"{_RM}scheduler.class": f"{_SERVER}resourcemanager.scheduler.capacity.CapacityScheduler"}
_LINUX = {f"{_NM}container-executor.class": f"{_SERVER}nodemanager.LinuxContainerExecutor", f"{_LCE}group": "yarn"}
_GPU_PLUGIN = {
    f"{_NM}resource-plugins": "yarn.io/gpu",
    f"{_NM}resource-plugins.gpu.allowed-gpu-devices": "auto",
    f"{_NM}resource-plugins.gpu.path-to-discovery-executables": "/usr/bin",
}
_DOMINANT = {f"{_Q}resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"}
_STATIC = "org.apache.hadoop.security.HttpCrossOriginFilterInitializer,org.apache.hadoop.http.lib.StaticUserWebFilter"

EMR: Sites = {
    "core-site.xml": {
        "fs.defaultFS": "hdfs://ip-172-31-8-20.ec2.internal:8020",
        "hadoop.security.authentication": "simple",
        "hadoop.http.filter.initializers": _STATIC,
    },
    "hdfs-site.xml": {
        "dfs.replication": "2",
        "dfs.namenode.rpc-address": "ip-172-31-8-20.ec2.internal:8020",
        "dfs.namenode.http-address": "ip-172-31-8-20.ec2.internal:9870",
    },
    "yarn-site.xml": {
        **_CAPACITY,
        **_LINUX,
        **_GPU_PLUGIN,
        "yarn.resource-types": "yarn.io/gpu",
        f"{_RM}hostname": "ip-172-31-8-20.ec2.internal",
        f"{_RM}webapp.address": "ip-172-31-8-20.ec2.internal:8088",
        f"{_RM}node-removal-untracked.timeout-ms": "1800000",
        f"{_NM}address": "${yarn.nodemanager.hostname}:8041",
        f"{_NM}local-dirs": "/mnt/yarn",
        f"{_NM}recovery.enabled": "true",
        f"{_NM}recovery.supervised": "true",
        f"{_NM}aux-services": "mapreduce_shuffle,spark_shuffle,",
        f"{_NM}node-labels.provider": "config",
        f"{_NM}node-labels.provider.configured-node-partition": "CORE",
        f"{_LCE}cgroups.mount": "true",
        f"{_LCE}cgroups.mount-path": "/spark-rapids-cgroup",
        f"{_LCE}cgroups.hierarchy": "yarn",
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.am.default-node-label-expression": "CORE",
        "yarn.node-labels.configuration-type": "distributed",
        "yarn.acl.enable": "false",
    },
    "capacity-scheduler.xml": {
        **_DOMINANT,
        f"{_Q}root.queues": "default",
        f"{_Q}root.default.capacity": "100",
        f"{_Q}root.default.maximum-capacity": "100",
        f"{_Q}root.default.user-limit-factor": "1",
        f"{_Q}root.accessible-node-labels": "*",
        f"{_Q}root.accessible-node-labels.CORE.capacity": "100",
        f"{_Q}root.default.accessible-node-labels.CORE.capacity": "100",
    },
}
"""EMR 7 with the classification of its guide to Spark RAPIDS (Hadoop 3.4): resource types in yarn-site.xml."""

DATAPROC: Sites = {
    "core-site.xml": {"fs.defaultFS": "hdfs://train-m", "hadoop.http.filter.initializers": _STATIC},
    "hdfs-site.xml": {
        "dfs.replication": "2",
        "dfs.namenode.rpc-address": "train-m:8051",
        "dfs.namenode.http-address": "0.0.0.0:9870",
    },
    "yarn-site.xml": {
        **_CAPACITY,
        **_LINUX,
        **_GPU_PLUGIN,
        "yarn.resource-types": "yarn.io/gpu",
        f"{_RM}hostname": "train-m",
        f"{_RM}webapp.methods-allowed": "GET,HEAD",
        f"{_RM}recovery.enabled": "true",
        f"{_RM}fs.state-store.uri": "/hadoop/yarn/rm-state",
        f"{_RM}nodes.include-path": "/etc/hadoop/conf/nodes_include",
        f"{_NM}address": "0.0.0.0:8026",
        f"{_NM}recovery.enabled": "true",
        f"{_NM}recovery.dir": "/hadoop/yarn/nm-recovery",
        f"{_LCE}cgroups.mount": "true",
        f"{_LCE}cgroups.mount-path": "/sys/fs/cgroup",
        f"{_LCE}cgroups.hierarchy": "yarn",
    },
    "resource-types.xml": {"yarn.resource-types": "yarn.io/gpu"},
    "capacity-scheduler.xml": {
        **_DOMINANT,
        f"{_Q}root.queues": "default",
        f"{_Q}root.default.capacity": "100",
        f"{_Q}root.default.maximum-capacity": "100",
        f"{_Q}root.default.user-limit-factor": "2",
        f"{_Q}root.default.ordering-policy": "fair",
    },
}
"""Dataproc 2.2 after its GPU initialization action (Hadoop 3.3)."""

_HOSTS = {"rm101": "master1.example.com", "rm102": "master2.example.com"}
_PORTS = {"address": 8032, "scheduler.address": 8030, "webapp.address": 8088, "webapp.https.address": 8090}

CDP: Sites = {
    "core-site.xml": {
        "fs.defaultFS": "hdfs://nameservice1",
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hadoop.security.auth_to_local": "RULE:[1:$1@$0](.*@EXAMPLE.COM)s/@.*///L\nDEFAULT",
        "hadoop.http.authentication.type": "kerberos",
        "hadoop.http.authentication.simple.anonymous.allowed": "false",
        "hadoop.http.filter.initializers": (
            "org.apache.hadoop.security.HttpCrossOriginFilterInitializer,"
            "org.apache.hadoop.security.authentication.server.ProxyUserAuthenticationFilterInitializer"
        ),
    },
    "hdfs-site.xml": {
        "dfs.nameservices": "nameservice1",
        "dfs.ha.namenodes.nameservice1": "namenode11,namenode12",
        "dfs.namenode.https-address.nameservice1.namenode11": "master1.example.com:9871",
        "dfs.namenode.https-address.nameservice1.namenode12": "master2.example.com:9871",
        "dfs.namenode.kerberos.principal": "hdfs/_HOST@EXAMPLE.COM",
        "dfs.http.policy": "HTTPS_ONLY",
    },
    "yarn-site.xml": {
        **_CAPACITY,
        **_LINUX,
        **_GPU_PLUGIN,
        "yarn.acl.enable": "true",
        "yarn.admin.acl": "yarn",
        "yarn.http.policy": "HTTPS_ONLY",
        f"{_RM}ha.enabled": "true",
        f"{_RM}ha.rm-ids": ",".join(_HOSTS),
        **{f"{_RM}{key}.{rm}": f"{host}:{port}" for rm, host in _HOSTS.items() for key, port in _PORTS.items()},
        f"{_RM}recovery.enabled": "true",
        f"{_RM}store.class": f"{_SERVER}resourcemanager.recovery.ZKRMStateStore",
        f"{_RM}principal": "yarn/_HOST@EXAMPLE.COM",
        f"{_RM}scheduler.monitor.enable": "true",
        f"{_RM}scheduler.monitor.policies": (
            f"{_SERVER}resourcemanager.monitor.capacity.ProportionalCapacityPreemptionPolicy,"
            f"{_SERVER}resourcemanager.monitor.capacity.QueueManagementDynamicEditPolicy"
        ),
        "yarn.scheduler.configuration.store.class": "zk",
        "yarn.node-attribute.fs-store.root-dir": "hdfs://nameservice1/yarn/node-attributes",
        "yarn.cluster.max-application-priority": "100",
        f"{_NM}address": "0.0.0.0:8041",
        f"{_NM}recovery.enabled": "true",
        f"{_NM}recovery.dir": "/var/lib/hadoop-yarn/yarn-nm-recovery",
        f"{_NM}runtime.linux.allowed-runtimes": "default",
    },
    "resource-types.xml": {"yarn.resource-types": "memory-mb,vcores,yarn.io/gpu,fpga"},
    "capacity-scheduler.xml": {
        **_DOMINANT,
        f"{_Q}root.queues": "default,prod",
        f"{_Q}root.default.capacity": "[memory=409600,vcores=100]",
        f"{_Q}root.prod.capacity": "[memory=4915200,vcores=1600,yarn.io/gpu=480]",
        f"{_Q}root.prod.maximum-capacity": "[memory=12288000,vcores=4000,yarn.io/gpu=960]",
    },
}
"""A CDP client's configuration (Hadoop 3.4): Kerberos, two ResourceManagers, Queue Manager's store, no keytabs."""

ALL = {"emr": (EMR, "3.4"), "dataproc": (DATAPROC, "3.3"), "cdp": (CDP, "3.4")}
"""Name -> (files, version of Hadoop)."""
