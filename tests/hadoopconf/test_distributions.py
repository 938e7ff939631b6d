"""All findings of `config check` on the configurations that distributions deliver, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli.config import config_group
from pycontrol.cli.install import install_command
from pycontrol.hadoopconf import check
from pycontrol.hadoopconf.distribution import Distribution
from tests.hadoopconf import distributions, samples

NOTHING = "note: yarn-site.xml: names nothing of Isonomy; `isonomy install --hadoop-conf DIR` says what would change"
ADMINS = "note: yarn-site.xml: yarn.admin.acl: is *: anyone may kill apps and drain nodes; name the administrators"
PRIORITY = (
    "note: yarn-site.xml: yarn.cluster.max-application-priority: is 0: YARN makes every application's priority 0;"
    " set it for priorities among a queue's apps"
)
ATTRIBUTES = (
    "note: yarn-site.xml: yarn.node-attribute.fs-store.root-dir: is in /tmp, the default: which GPUs operators marked"
    " bad is lost when it is cleared; name another folder"
)
EXPECTED = {
    "emr": [
        ADMINS,
        "note: yarn-site.xml: yarn.nodemanager.recovery.dir: is not set: what is recovered lies in"
        " ${hadoop.tmp.dir}/yarn-nm-recovery; is that kept?",
        PRIORITY,
        ATTRIBUTES,
        NOTHING,
    ],
    "dataproc": [
        ADMINS,
        "note: yarn-site.xml: yarn.resourcemanager.webapp.methods-allowed: is GET,HEAD: `isonomy` only reads; kill,"
        " pause, drain and cells apply need POST as well",
        PRIORITY,
        ATTRIBUTES,
        NOTHING,
    ],
    "cdp": [
        "note: yarn-site.xml: yarn.resourcemanager.scheduler.monitor.policies: names"
        " ProportionalCapacityPreemptionPolicy, which may take leased GPUs back: set disable_preemption of the queues"
        " with GPUs to true in capacity-scheduler.xml; its other policies, and preemption in other queues, may stay",
        "note: yarn-site.xml: yarn.scheduler.configuration.store.class: is zk: YARN keeps the queues there and does"
        " not read capacity-scheduler.xml, so they are not checked here;"
        " `yarn schedulerconf -global yarn.scheduler.capacity.resource-calculator=org.apache.hadoop.yarn.util.resource"
        ".DominantResourceCalculator` lets YARN count GPUs",
        NOTHING,
        "note: core-site.xml: hadoop.http.authentication.kerberos.principal: is not set: this is a client's file;"
        " check that of the ResourceManager as well",
        "note: hdfs-site.xml: names no keytab: this is a client's file; the NameNode's and DataNodes' are not checked",
        "note: yarn-site.xml: names no keytab: this is a client's file; check that of the ResourceManager as well",
    ],
}


@pytest.mark.parametrize("name", sorted(distributions.ALL))
def test_nothing_that_a_distribution_delivers_is_an_error(name: str, tmp_path: Path) -> None:
    sites, hadoop = distributions.ALL[name]
    folder = samples.write(sites, tmp_path / "conf")
    result = CliRunner().invoke(config_group, ["check", str(folder), "--hadoop", hadoop])
    *lines, total = result.output.splitlines()
    assert lines == EXPECTED[name]
    assert (result.exit_code, total) == (0, f"{folder}: 0 errors, {len(lines)} notes")


@pytest.mark.parametrize("stage", ["watch", "executors", "all"])
@pytest.mark.parametrize("name", sorted(distributions.ALL))
def test_what_install_writes_passes_the_check_of_its_version(name: str, stage: str, tmp_path: Path) -> None:
    sites, hadoop = distributions.ALL[name]
    conf, out = samples.write(sites, tmp_path / "conf"), tmp_path / "out"
    words = ["--hadoop-conf", str(conf), "--hadoop", hadoop, "--stage", stage, "--gpus", "8", "--apply", str(out)]
    assert CliRunner().invoke(install_command, words).exit_code in (0, 1)
    for kind in out.iterdir():
        machine = samples.write(sites, tmp_path / kind.name)
        for file in kind.iterdir():
            (machine / file.name).write_bytes(file.read_bytes())
        rest = [f.key for f in check.check(machine, Distribution(hadoop)) if f.level == "error"]
        own = name == "cdp" and kind.name == "resourcemanagers"
        assert rest == (["agents.tls"] if own else []), "a certificate is the administrator's to make"


def findings(sites: Mapping[str, Mapping[str, str]], folder: Path, hadoop: str = "") -> list[str]:
    return [str(f) for f in check.check(samples.write(sites, folder), Distribution(hadoop))]


def test_a_parents_queues_may_be_weighted_or_absolute_and_limits_are_no_errors(tmp_path: Path) -> None:
    q = "yarn.scheduler.capacity.root."
    queues = {
        f"{q}queues": "a,b,c",
        f"{q}a.capacity": "4w",
        f"{q}a.maximum-capacity": "[memory=12288000,vcores=4000,yarn.io/gpu=960]",
        f"{q}b.capacity": "[memory=4096, yarn.io/gpu=8]",
        f"{q}c.capacity": "0",
    }
    conf = {**distributions.EMR, "capacity-scheduler.xml": queues}
    found = [f for f in findings(conf, tmp_path / "1") if f.split(": ")[1] == "capacity-scheduler.xml"]
    assert [f.split(": ")[0] for f in found] == ["note", "note"]
    assert "is [memory=12288000,vcores=4000,yarn.io/gpu=960]: offers to its apps end there" in found[0]
    wrong = {**queues, f"{q}a.capacity": "4x", f"{q}a.maximum-capacity": "[gpu]", f"{q}b.maximum-capacity": "101"}
    conf = {**conf, "capacity-scheduler.xml": wrong}
    keys = [f.split(": ")[2] for f in findings(conf, tmp_path / "2") if f.startswith("error")]
    assert keys == [f"{q}a.capacity", f"{q}a.maximum-capacity", f"{q}b.maximum-capacity"]


@pytest.mark.parametrize(
    ("hadoop", "key", "value"),
    [
        ("3.4", "yarn.http.rmwebapp.external.classes", "isonomy.yarn.IsonomyExternalResource"),
        ("3.5", "yarn.webapp.custom.webservice.class", "isonomy.yarn.IsonomyWebServices"),
    ],
)
def test_obeying_the_check_leads_to_a_resourcemanager_that_starts(
    hadoop: str, key: str, value: str, tmp_path: Path
) -> None:
    yarn = {**distributions.EMR["yarn-site.xml"], "isonomy.bridge.port": "26500"}
    before = findings({**distributions.EMR, "yarn-site.xml": yarn}, tmp_path / "before", hadoop)
    (advice,) = [f for f in before if f" {key}: must be {value} (got nothing)" in f]
    assert advice.startswith("error")
    after = findings({**distributions.EMR, "yarn-site.xml": {**yarn, key: value}}, tmp_path / "after", hadoop)
    assert [f for f in after if "webservice" in f or "rmwebapp" in f] == []


def test_resource_types_of_both_files_survive(tmp_path: Path) -> None:
    yarn = {**distributions.EMR["yarn-site.xml"], "yarn.resource-types": "fpga,yarn.io/gpu"}
    conf = {**distributions.EMR, "yarn-site.xml": {**yarn, "isonomy.nm.gpu-wait-ms": "1"}}
    assert [f for f in findings(conf, tmp_path / "alone") if "resource-types" in f] == []
    hidden = {**conf, "resource-types.xml": {"yarn.resource-types": "yarn.io/gpu,nvidia.com/mig"}}
    (found,) = [f for f in findings(hidden, tmp_path / "hidden") if "resource-types" in f]
    assert "must be yarn.io/gpu,nvidia.com/mig,fpga (got yarn.io/gpu,nvidia.com/mig)" in found


def test_preemption_elsewhere_stays(tmp_path: Path) -> None:
    yarn = dict(distributions.CDP["yarn-site.xml"])
    key = "yarn.resourcemanager.scheduler.monitor.policies"
    yarn[key] = yarn[key].rpartition(",")[2]
    assert [f for f in findings({**distributions.CDP, "yarn-site.xml": yarn}, tmp_path) if "monitor" in f] == []


def test_one_file_is_checked_by_itself(tmp_path: Path) -> None:
    conf = samples.write({**distributions.EMR, "capacity-scheduler.xml": {}}, tmp_path)
    (yarn,) = [f for f in check.check(conf / "yarn-site.xml") if not f.key]
    assert str(yarn) == NOTHING
    (calculator,) = [f for f in check.check(conf / "capacity-scheduler.xml") if "calculator" in f.key]
    assert calculator.level == "error"


def test_a_cluster_on_one_machine_names_no_resourcemanager(tmp_path: Path) -> None:
    conf = samples.write({**distributions.EMR, "yarn-site.xml": {}}, tmp_path / "conf")
    words = ["--hadoop-conf", str(conf), "--hadoop", "3.4", "--apply", str(tmp_path / "out")]
    assert CliRunner().invoke(install_command, words).exit_code == 0
    assert "rm_web: http://localhost:8088" in (tmp_path / "out" / "resourcemanagers" / "isonomy.yaml").read_text()
