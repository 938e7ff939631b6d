"""`isonomy install` on configurations of three distributions: the changes, made only in copies, and their removal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pycontrol.cli.install import install_command
from pycontrol.config import ConfigError
from pycontrol.hadoopconf import sitetext
from pycontrol.hadoopconf.sitefile import read_site
from tests.hadoopconf import samples

NM, RM = "yarn.nodemanager.", "yarn.resourcemanager."
VERSIONS = {"bigtop": "3.3", "emr": "3.4", "dataproc": "3.5"}


def run(*words: str) -> Result:
    return CliRunner().invoke(install_command, list(words))


def planned(folder: Path, *words: str) -> dict[str, Any]:
    result = run("--hadoop-conf", str(folder), *words, "-o", "json")
    assert result.exit_code in (0, 1), result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.fixture(params=sorted(samples.ALL))
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    name: str = request.param
    return name, samples.write(samples.ALL[name], tmp_path / "conf")


def test_only_copies_change_and_removal_restores_them_exactly(sample: tuple[str, Path], tmp_path: Path) -> None:
    name, conf = sample
    before = {f.name: f.read_bytes() for f in conf.iterdir()}
    planned(conf, "--hadoop", VERSIONS[name])
    on = ("--hadoop", VERSIONS[name], "--mode", "on", "--gpus", "4")
    planned(conf, *on, "--apply", str(tmp_path / "out"))
    assert {f.name: f.read_bytes() for f in conf.iterdir()} == before
    site = read_site(tmp_path / "out" / "yarn-site.xml")
    assert site[f"{RM}scheduler.class"] == "isonomy.yarn.IsonomyScheduler"
    assert "isonomy.scheduler.mode" not in site, "the mode lies in its store"
    executor = "" if name == "dataproc" else "Linux"
    assert site[f"{NM}container-executor.class"] == f"isonomy.nm.Isonomy{executor}ContainerExecutor"
    key = "yarn.webapp.custom.webservice.class" if name == "dataproc" else "yarn.http.rmwebapp.external.classes"
    assert key in site
    assert "yarn.io/gpu" not in site.get(f"{NM}resource-plugins", "")
    assert not site[f"{NM}address"].endswith(":0")
    assert (tmp_path / "out" / "isonomy.yaml").exists()
    assert "managed; yarn-site.xml" in (tmp_path / "out" / "yarn-site.xml").read_text()
    # as an admin does it: the copies over the originals; then the removal
    for file in (tmp_path / "out").iterdir():
        (conf / file.name).write_bytes(file.read_bytes())
    assert planned(conf, *on)["changes"] == []
    planned(conf, "--remove", "--apply", str(tmp_path / "back"))
    for file in (tmp_path / "back").iterdir():
        (conf / file.name).write_bytes(file.read_bytes())
    for file_name, site_before in samples.ALL[name].items():
        assert read_site(conf / file_name) == dict(site_before), file_name
    assert planned(conf, "--remove")["changes"] == []


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_while_isonomy_is_off_or_watches_no_nodemanager_changes(sample: tuple[str, Path], mode: str) -> None:
    """YARN's own GPU plugin is the one that assigns and isolates GPUs then."""
    name, conf = sample
    found = planned(conf, "--hadoop", VERSIONS[name], "--mode", mode, "--gpus", "4")
    assert {c["who"] for c in found["changes"]} == {"ResourceManager"}
    assert not [c for c in found["changes"] if c["key"].startswith("yarn.nodemanager") or "nm" in c["key"]]
    assert not [f for f in found["findings"] if "container-executor" in f["key"]]


def test_later_changes_are_left_alone(tmp_path: Path) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    planned(conf, "--hadoop", "3.4", "--mode", "on", "--apply", str(tmp_path / "out"))
    for file in (tmp_path / "out").iterdir():
        (conf / file.name).write_bytes(file.read_bytes())
    yarn = conf / "yarn-site.xml"
    yarn.write_text(sitetext.edited("yarn-site.xml", yarn.read_text(), {"isonomy.bridge.token-file": "/x"}))
    found = planned(conf, "--remove")
    assert [c["key"] for c in found["left"]] == ["isonomy.bridge.token-file"]
    assert "isonomy.bridge.token-file" not in [c["key"] for c in found["changes"]]
    (conf / "isonomy-install.json").unlink()  # without a record our keys are removed, classes become Hadoop's
    back = {c["key"]: c["new"] for c in planned(conf, "--remove")["changes"]}
    assert back["isonomy.bridge.token-file"] is None
    assert back[f"{NM}container-executor.class"].endswith("nodemanager.LinuxContainerExecutor")
    assert back[f"{RM}scheduler.class"].endswith("CapacityScheduler")


def apply(conf: Path, out: Path, *words: str) -> None:
    """As an admin does it: the copies over the originals."""
    planned(conf, *words, "--apply", str(out))
    for file in out.iterdir():
        (conf / file.name).write_bytes(file.read_bytes())


def test_removal_restores_the_original_after_any_number_of_installs(tmp_path: Path) -> None:
    conf = samples.write(samples.BIGTOP, tmp_path / "conf")
    apply(conf, tmp_path / "1", "--hadoop", "3.3", "--mode", "off", "--gpus", "2")
    apply(conf, tmp_path / "2", "--hadoop", "3.3", "--mode", "on", "--gpus", "4")
    apply(conf, tmp_path / "3", "--hadoop", "3.3", "--mode", "on", "--gpus", "4")  # nothing changes
    apply(conf, tmp_path / "4", "--hadoop", "3.3", "--mode", "off", "--gpus", "4")
    apply(conf, tmp_path / "back", "--remove")
    for file_name, site_before in samples.BIGTOP.items():
        assert read_site(conf / file_name) == dict(site_before), file_name
    assert read_site(conf / "node-resources.xml") == {}
    said = run("--hadoop-conf", str(conf), "--remove").output
    assert said.startswith("nothing changes\n")
    assert "isonomy.yaml: remove it from" in said
    apply(conf, tmp_path / "5", "--hadoop", "3.3", "--mode", "shadow")  # and once more
    apply(conf, tmp_path / "back-again", "--remove")
    assert read_site(conf / "yarn-site.xml") == dict(samples.BIGTOP["yarn-site.xml"])


def test_copies_have_the_permissions_of_the_originals(tmp_path: Path) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    (conf / "yarn-site.xml").chmod(0o640)
    planned(conf, "--hadoop", "3.4.2-amzn-0", "--apply", str(tmp_path / "out"))
    assert (tmp_path / "out" / "yarn-site.xml").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["core-site.xml", "yarn-site.xml", "isonomy-install.json"])
def test_an_unreadable_file_is_one_line(name: str, tmp_path: Path) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    (conf / name).unlink(missing_ok=True)
    (conf / name).mkdir()  # as unreadable as a file of others, also to root
    result = run("--hadoop-conf", str(conf), "--hadoop", "3.4", "--apply", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert name in result.output
    assert result.output.count("\n") == 1
    (conf / name).rmdir()
    (tmp_path / "file").touch()
    result = run("--hadoop-conf", str(samples.write(samples.EMR, tmp_path / "conf")), "--hadoop", "3.4",
                 "--apply", str(tmp_path / "file" / "out"))  # fmt: skip
    assert (result.exit_code, result.output.count("\n")) == (1, 1)


def test_where_the_resourcemanagers_store_has_no_place_for_the_mode_a_folder_is_named(tmp_path: Path) -> None:
    store = "org.apache.hadoop.yarn.server.resourcemanager.recovery.LeveldbRMStateStore"
    sites = {**samples.EMR, "yarn-site.xml": {**samples.EMR["yarn-site.xml"], f"{RM}store.class": store}}
    found = planned(samples.write(sites, tmp_path / "conf"), "--hadoop", "3.4")
    assert [c["new"] for c in found["changes"] if c["key"] == "isonomy.scheduler.mode-dir"] == ["/var/lib/isonomy"]


def test_an_older_hadoop_loses_the_key_that_keeps_it_from_starting(tmp_path: Path) -> None:
    key = "yarn.webapp.custom.webservice.class"
    sites = {**samples.EMR, "yarn-site.xml": {**samples.EMR["yarn-site.xml"], key: "isonomy.yarn.IsonomyWebServices"}}
    found = planned(samples.write(sites, tmp_path / "conf"), "--hadoop", "3.4")
    assert [c["new"] for c in found["changes"] if c["key"] == key] == [None]


def test_the_plan_is_a_diff_with_the_remaining_steps(tmp_path: Path) -> None:
    conf = samples.write(samples.BIGTOP, tmp_path / "conf")
    result = run("--hadoop-conf", str(conf), "--hadoop", "3.3", "--mode", "on")
    assert result.exit_code == 1
    assert f"yarn-site.xml (NodeManagers)\n  - {NM}container-executor.class = org.apache" in result.output
    assert f"  + {NM}container-executor.class = isonomy.nm.IsonomyLinuxContainerExecutor\n" in result.output
    assert f"  - {NM}resource-plugins = yarn.io/gpu\n" in result.output
    assert "Isonomy is off until you switch it: isonomy mode on\n" in result.output
    assert "error: core-site.xml: hadoop.security.auth_to_local: " in result.output
    assert "say each machine's number of GPUs" in result.output


@pytest.mark.parametrize(
    ("change", "words", "why"),
    [
        ({f"{RM}scheduler.class": "org.x.FairScheduler"}, ("--hadoop", "3.4"), "extends CapacityScheduler alone"),
        (
            {f"{NM}container-executor.class": "org.x.Own"},
            ("--hadoop", "3.4", "--mode", "on"),
            "is org.x.Own; ours extend",
        ),
        ({}, ("--hadoop", "2.10"), "must be 3.3 or 3.4 or 3.5"),
        ({}, (), "--hadoop is absent"),
        ({}, ("--hadoop", "3.4", "--apply", "CONF"), "in the cluster's own configuration"),
        ({}, ("--hadoop", "3.4", "--apply", "CONF/new"), "in the cluster's own configuration"),
        ({}, ("--hadoop", "3.4", "--apply", "CONF", "--plan"), "give one of them"),
    ],
)
def test_a_conflict_is_one_line(
    change: dict[str, str], words: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    sites = {**samples.EMR, "yarn-site.xml": {**samples.EMR["yarn-site.xml"], **change}}
    conf = samples.write(sites, tmp_path / "conf")
    result = run("--hadoop-conf", str(conf), *(w.replace("CONF", str(conf)) for w in words))
    assert result.exit_code in (1, 2)
    assert why in result.output
    assert result.output.count("\n") == 1


def test_the_version_is_that_of_hadoop_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    jars = tmp_path / "home" / "share" / "hadoop" / "common"
    jars.mkdir(parents=True)
    (jars / "hadoop-common-3.4.2-amzn-0.jar").touch()
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path / "home"))
    assert "yarn.http.rmwebapp.external.classes" in [c["key"] for c in planned(conf)["changes"]]


COMMENTED = """<?xml version="1.0"?>
<configuration>
  <!-- <property><name>a</name><value>0</value></property> -->
  <property>
    <name> a </name>
    <value/>
    <final>true</final>
  </property>
  <property><name>b&amp;c</name><value>1</value></property>
</configuration>
"""


def test_editing_leaves_comments_final_and_indentation() -> None:
    text = sitetext.edited("x", COMMENTED, {"a": "<1>", "new": "2"})
    assert text == COMMENTED.replace("<value/>", "<value>&lt;1&gt;</value>").replace(
        "</configuration>", "  <property><name>new</name><value>2</value></property>\n</configuration>"
    )
    assert sitetext.edited("x", text, {"a": "", "new": None}).replace("<value></value>", "<value/>") == COMMENTED
    assert "b&amp;c" not in sitetext.edited("x", COMMENTED, {"b&c": None})


def test_a_file_that_cannot_be_edited_safely_is_refused() -> None:
    twice = COMMENTED.replace("</configuration>", "<property><name>b</name></property></configuration>")
    with pytest.raises(ConfigError, match="by hand"):
        sitetext.edited("x", twice, {"b": "1"})
    with pytest.raises(ConfigError, match="by hand"):
        sitetext.edited("x", "<configuration/>", {"a": "1"})
