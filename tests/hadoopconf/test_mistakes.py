"""Each mistake that keeps a production cluster from working with Isonomy, put alone into a right configuration."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pycontrol.hadoopconf import check, render
from tests.hadoopconf import samples

CORE, HDFS, YARN, SCHEDULER = "core-site.xml", "hdfs-site.xml", "yarn-site.xml", "capacity-scheduler.xml"
RM, NM, HTTP = "yarn.resourcemanager.", "yarn.nodemanager.", "hadoop.http.authentication."
LINUX, QUEUES = f"{NM}linux-container-executor.", "yarn.scheduler.capacity."
HADOOP = "org.apache.hadoop.yarn."

MISTAKES: list[tuple[str, str, str, str | None]] = [
    # Kerberos
    ("error", CORE, "hadoop.security.auth_to_local", "RULE:[2:$1@$0]((nn|dn)@EXAMPLE.ORG)s/.*/hdfs/ DEFAULT"),
    ("error", CORE, "hadoop.http.filter.initializers", None),
    ("error", CORE, f"{HTTP}type", "simple"),
    ("error", CORE, f"{HTTP}kerberos.principal", None),
    ("error", CORE, f"{HTTP}kerberos.keytab", None),
    ("note", CORE, f"{HTTP}simple.anonymous.allowed", "true"),
    ("note", CORE, f"{HTTP}signature.secret.file", None),
    ("note", CORE, "hadoop.security.authorization", None),
    ("error", HDFS, "dfs.block.access.token.enable", "false"),
    ("error", HDFS, "dfs.http.policy", "HTTP_ONLY"),
    ("error", HDFS, "dfs.data.transfer.protection", None),
    ("error", HDFS, "dfs.web.authentication.kerberos.principal", None),
    ("error", HDFS, "dfs.namenode.kerberos.principal", None),
    ("error", HDFS, "dfs.datanode.keytab.file", None),
    ("note", HDFS, "ignore.secure.ports.for.testing", "true"),
    ("error", YARN, f"{RM}principal", None),
    ("error", YARN, f"{NM}keytab", None),
    # executors and GPUs
    ("error", YARN, f"{NM}container-executor.class", f"{HADOOP}server.nodemanager.LinuxContainerExecutor"),
    ("error", YARN, f"{NM}resource-plugins", "yarn.io/fpga,yarn.io/gpu"),
    ("error", YARN, f"{LINUX}group", None),
    ("error", YARN, f"{NM}env-whitelist", "JAVA_HOME,CUDA_VISIBLE_DEVICES"),
    ("note", YARN, f"{NM}runtime.linux.allowed-runtimes", "default,docker"),
    ("note", YARN, "isonomy.scheduler.require-executor", "false"),
    ("error", "resource-types.xml", "yarn.resource-types", "yarn.io/fpga"),
    ("error", "node-resources.xml", f"{NM}resource-type.yarn.io/gpu", "auto"),
    # what allocates, restarts or takes back past the plugin
    ("error", YARN, f"{RM}scheduler.class", f"{HADOOP}server.resourcemanager.scheduler.fair.FairScheduler"),
    ("error", YARN, "yarn.scheduler.fair.allocation.file", "/etc/hadoop/conf/fair-scheduler.xml"),
    ("error", YARN, f"{RM}placement-constraints.handler", "placement-processor"),
    ("error", YARN, "yarn.federation.enabled", "true"),
    ("note", YARN, f"{RM}opportunistic-container-allocation.enabled", "true"),
    ("note", YARN, "yarn.scheduler.configuration.store.class", "zk"),
    ("error", YARN, f"{NM}address", "0.0.0.0:0"),
    ("note", YARN, f"{NM}recovery.enabled", "false"),
    ("note", YARN, f"{NM}recovery.supervised", None),
    ("note", YARN, f"{NM}recovery.dir", None),
    ("note", YARN, f"{RM}fs.state-store.uri", None),
    ("note", YARN, f"{RM}webapp.methods-allowed", "GET,HEAD"),
    ("note", YARN, f"{RM}recovery.enabled", "false"),
    ("note", YARN, f"{RM}am.max-attempts", "1"),
    ("note", YARN, "yarn.am.liveness-monitor.expiry-interval-ms", "10000"),
    ("note", YARN, "yarn.node-attribute.fs-store.root-dir", None),
    ("note", YARN, "yarn.cluster.max-application-priority", None),
    ("note", YARN, "yarn.admin.acl", "*"),
    ("error", YARN, "yarn.webapp.custom.webservice.class", None),
    ("note", YARN, "isonomy.scheduler.bypass", "true"),
    ("note", YARN, "isonomy.scheduler.mode", "on"),
    ("note", YARN, "isonomy.scheduler.queues", "root.research"),
    # queues
    ("error", SCHEDULER, f"{QUEUES}resource-calculator", f"{HADOOP}util.resource.DefaultResourceCalculator"),
    ("note", SCHEDULER, f"{QUEUES}root.research.user-limit-factor", "1"),
    ("note", SCHEDULER, f"{QUEUES}root.research.user-limit-factor", "-1"),
    ("error", SCHEDULER, f"{QUEUES}root.research.capacity", "some"),
    ("error", SCHEDULER, f"{QUEUES}root.queues", None),
]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a secure cluster with LinuxContainerExecutor, by name."""
    pem = samples.pem(tmp_path_factory.mktemp("tls") / "x.pem")
    tls = {f"tls_{k}": str(pem) for k in ("cert", "key", "ca")}
    linux = {"executor": "linux", "linux_path": "/opt/container-executor", "linux_group": "yarn"}
    return render.render(
        {"security": {"kerberos": True}, "isonomy": tls, "nodemanager": linux, "yarn": {"admin_acl": "ops"}}
    )


def changed(text: str, key: str, value: str | None) -> str:
    """The file with another value of a key; None: without the key."""
    site = ET.fromstring(text)
    for found in [p for p in site.iter("property") if p.findtext("name") == key]:
        site.remove(found)
    if value is not None:
        new = ET.SubElement(site, "property")
        ET.SubElement(new, "name").text, ET.SubElement(new, "value").text = key, value
    return ET.tostring(site, encoding="unicode")


@pytest.mark.parametrize(
    ("key", "value"),
    [(f"{RM}recovery.enabled", "false"), (f"{RM}store.class", f"{HADOOP}recovery.LeveldbRMStateStore")],
)
def test_the_mode_needs_a_place(right: dict[str, str], tmp_path: Path, key: str, value: str) -> None:
    folder = "isonomy.scheduler.mode-dir"
    render.write({**right, YARN: changed(right[YARN], key, value)}, tmp_path)
    assert ("error", folder) in {(f.level, f.key) for f in check.check(tmp_path)}
    render.write({YARN: changed(changed(right[YARN], key, value), folder, "/var/lib/isonomy")}, tmp_path)
    assert folder not in {f.key for f in check.check(tmp_path)}


@pytest.mark.parametrize(("level", "file", "key", "value"), MISTAKES, ids=lambda part: part and str(part)[-50:])
def test_a_mistake_is_found_where_it_is(
    right: dict[str, str], tmp_path: Path, level: str, file: str, key: str, value: str | None
) -> None:
    def found(folder: str) -> set[tuple[str, str, str]]:
        return {(f.level, f.file, f.key) for f in check.check(tmp_path / folder)}

    render.write(right, tmp_path / "right")
    render.write({**right, file: changed(right[file], key, value)}, tmp_path / "wrong")
    before = found("right")
    assert [f for f in before if f[0] == "error"] == []
    assert (level, file, key) not in before
    assert (level, file, key) in found("wrong")
