"""All findings of `config check` on the configurations that distributions deliver, line by line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli.config import config_group
from pycontrol.cli.install import install_command
from pycontrol.hadoopconf import check
from pycontrol.hadoopconf.distribution import Distribution
from tests.hadoopconf import distributions, samples

NM = "yarn.nodemanager."
NOTHING = "note: yarn-site.xml: names nothing of Isonomy; `isonomy install --hadoop-conf DIR` says what would change"
TRIAL = Path(__file__).with_name("trial")
"""Whole folders as on EMR 7 with RAPIDS, Dataproc 2.2 and CDP; findings.txt has what `config check` says of each."""


@pytest.mark.parametrize("name", sorted(distributions.ALL))
def test_nothing_that_a_distribution_delivers_is_an_error(name: str) -> None:
    result = CliRunner().invoke(config_group, ["check", str(TRIAL / name), "--hadoop", distributions.ALL[name][1]])
    *lines, total = result.output.splitlines()
    assert lines == (TRIAL / name / "findings.txt").read_text().splitlines()
    assert (result.exit_code, total) == (0, f"{TRIAL / name}: 0 errors, {len(lines)} notes")


@pytest.mark.parametrize("stage", ["watch", "executors", "all"])
@pytest.mark.parametrize("name", sorted(distributions.ALL))
def test_what_install_writes_passes_the_check_of_its_version(name: str, stage: str, tmp_path: Path) -> None:
    hadoop, conf, out = distributions.ALL[name][1], TRIAL / name, tmp_path / "out"
    words = ["--hadoop-conf", str(conf), "--hadoop", hadoop, "--stage", stage, "--gpus", "8", "--apply", str(out)]
    assert CliRunner().invoke(install_command, words).exit_code in (0, 1)
    for kind in out.iterdir():
        machine = tmp_path / kind.name
        shutil.copytree(conf, machine)
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
    "values",
    [
        {"a.capacity": "33.33", "b.capacity": "33.33", "c.capacity": "33.33"},
        {"a.capacity": "50", "a.maximum-capacity": "-1", "b.capacity": "25", "c.capacity": "25"},
        {"a.capacity": "50", "b.capacity": "30", "c.capacity": "0", "": "false"},
    ],
    ids=["nearly 100", "no maximum", "not of the legacy mode"],
)
def test_capacities_that_yarn_takes_are_no_errors(tmp_path: Path, values: dict[str, str]) -> None:
    c = "yarn.scheduler.capacity."
    site = {f"{c}root.{k}" if k else f"{c}legacy-queue-mode.enabled": v for k, v in values.items()}
    conf = {**distributions.EMR, "capacity-scheduler.xml": {**site, f"{c}root.queues": "a,b,c"}}
    found = [f for f in findings(conf, tmp_path) if f.startswith("error") and f"{c}root" in f]
    assert found == []


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


def test_cpus_stay_limited_where_the_former_handler_of_cgroups_limited_them(tmp_path: Path) -> None:
    linux = f"{NM}linux-container-executor.resources-handler.class"
    handler = "org.apache.hadoop.yarn.server.nodemanager.util.CgroupsLCEResourcesHandler"
    yarn = {**distributions.CDP["yarn-site.xml"], linux: handler}
    conf = samples.write({**distributions.CDP, "yarn-site.xml": yarn}, tmp_path)
    words = ["--hadoop-conf", str(conf), "--hadoop", "3.4", "--stage", "executors", "-o", "json"]
    changes = json.loads(CliRunner().invoke(install_command, words).output)["changes"]
    new = {c["key"]: c["new"] for c in changes}
    assert (new[linux], new[f"{NM}resource.cpu.enabled"]) == ("isonomy.nm.GpuDevices", "true")


def test_a_folder_of_both_kinds_of_daemons_keeps_the_whole_record(tmp_path: Path) -> None:
    conf, scheduler = samples.write(distributions.EMR, tmp_path / "conf"), "yarn.resourcemanager.scheduler.class"
    for stage, kind in (("watch", "resourcemanagers"), ("executors", "gpu-nodes")):
        out = tmp_path / stage
        words = ["--hadoop-conf", str(conf), "--hadoop", "3.4", "--stage", stage, "--apply", str(out)]
        CliRunner().invoke(install_command, words)
        shutil.copytree(out / kind, conf, dirs_exist_ok=True)
    said = json.loads(
        CliRunner().invoke(install_command, ["--hadoop-conf", str(conf), "--remove", "-o", "json"]).output
    )
    assert {scheduler, f"{NM}container-executor.class"} <= {c["key"] for c in said["changes"]}
