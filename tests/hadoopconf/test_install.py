"""`isonomy install` on configurations of three distributions: the changes, made only in copies, and their removal."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pycontrol.cli import main
from pycontrol.cli.install import install_command
from pycontrol.config import ConfigError, load_config
from pycontrol.hadoopconf import sitefile
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.preflight import DENIES
from pycontrol.hadoopconf.sitefile import read_site
from tests.hadoopconf import distributions, samples

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


CLASSES = ("resourcemanagers", "gpu-nodes", "all-machines")


def apply(confs: Mapping[str, Path], out: Path, *words: str) -> None:
    """As an admin does it on a machine of each class: the copies of the class over the originals."""
    for kind, conf in confs.items():
        planned(conf, *words, "--apply", str(out / kind))
        for file in (out / kind / kind).glob("*"):
            (conf / file.name).write_bytes(file.read_bytes())


def machines(sites: samples.Sites, folder: Path) -> dict[str, Path]:
    """The same configuration on a machine of each class."""
    return {kind: samples.write(sites, folder / kind) for kind in CLASSES}


def test_only_copies_change_and_removal_restores_them_exactly(sample: tuple[str, Path], tmp_path: Path) -> None:
    name, conf = sample
    before = {f.name: f.read_bytes() for f in conf.iterdir()}
    on = ("--hadoop", VERSIONS[name], "--stage", "all", "--gpus", "4")
    planned(conf, *on, "--apply", str(tmp_path / "out"))
    assert {f.name: f.read_bytes() for f in conf.iterdir()} == before
    confs = machines(samples.ALL[name], tmp_path / "machines")
    apply(confs, tmp_path / "new", *on)
    rm, gpu = (read_site(confs[kind] / "yarn-site.xml") for kind in CLASSES[:2])
    assert rm[f"{RM}scheduler.class"] == "isonomy.yarn.IsonomyScheduler"
    assert "isonomy.scheduler.mode" not in rm, "the mode lies in its store"
    key = "yarn.webapp.custom.webservice.class" if name == "dataproc" else "yarn.http.rmwebapp.external.classes"
    assert key in rm
    assert (confs["resourcemanagers"] / "isonomy.yaml").exists()
    executor = "" if name == "dataproc" else "Linux"
    assert gpu[f"{NM}container-executor.class"] == f"isonomy.nm.Isonomy{executor}ContainerExecutor"
    assert "yarn.io/gpu" not in gpu.get(f"{NM}resource-plugins", "")
    assert gpu[f"{NM}recovery.supervised"] == "true"
    assert not gpu[f"{NM}address"].endswith(":0")
    assert not [k for k in gpu if k.startswith("isonomy.")], "no evidence file that a NodeManager could not write"
    assert read_site(confs["gpu-nodes"] / "node-resources.xml") == {f"{NM}resource-type.yarn.io/gpu": "4"}
    assert read_site(confs["resourcemanagers"] / "resource-types.xml") == {"yarn.resource-types": "yarn.io/gpu"}
    cpu = confs["all-machines"]
    assert read_site(cpu / "submarine-site.xml")["isonomy.python"] == "/opt/isonomy/venv/bin/python"
    assert read_site(cpu / "yarn-site.xml") == dict(samples.ALL[name]["yarn-site.xml"]), "CPU nodes and gateways"
    assert not (cpu / "node-resources.xml").exists()
    assert "managed; yarn-site.xml" in (confs["gpu-nodes"] / "yarn-site.xml").read_text()
    apply(confs, tmp_path / "back", "--remove")
    for file_name, site_before in samples.ALL[name].items():
        for kind in CLASSES:
            assert read_site(confs[kind] / file_name) == dict(site_before), (kind, file_name)
    assert planned(confs["gpu-nodes"], "--remove")["changes"] == []


def test_while_isonomy_watches_no_nodemanager_changes(sample: tuple[str, Path]) -> None:
    """YARN's own GPU plugin is the one that assigns and isolates GPUs then."""
    name, conf = sample
    found = planned(conf, "--hadoop", VERSIONS[name], "--stage", "watch", "--gpus", "4")
    assert {c["who"] for c in found["changes"]} == {"ResourceManagers"}
    assert not [c for c in found["changes"] if c["key"].startswith("yarn.nodemanager") or "nm" in c["key"]]
    assert not [f for f in found["findings"] if "container-executor" in f["key"]]


def test_later_changes_are_left_alone(tmp_path: Path) -> None:
    confs = machines(samples.EMR, tmp_path)
    apply(confs, tmp_path / "out", "--hadoop", "3.4", "--stage", "all")
    conf = confs["resourcemanagers"]
    yarn = conf / "yarn-site.xml"
    yarn.write_text(sitefile.edited("yarn-site.xml", yarn.read_text(), {"isonomy.bridge.token-file": "/x"}))
    found = planned(conf, "--remove")
    assert [c["key"] for c in found["left"]] == ["isonomy.bridge.token-file"]
    assert "isonomy.bridge.token-file" not in [c["key"] for c in found["changes"]]
    (conf / "isonomy-install.json").unlink()  # without a record our keys are removed, classes become Hadoop's
    back = {c["key"]: c["new"] for c in planned(conf, "--remove")["changes"]}
    assert back["isonomy.bridge.token-file"] is None
    assert back[f"{RM}scheduler.class"].endswith("CapacityScheduler")
    (confs["gpu-nodes"] / "isonomy-install.json").unlink()
    back = {c["key"]: c["new"] for c in planned(confs["gpu-nodes"], "--remove")["changes"]}
    assert back[f"{NM}container-executor.class"].endswith("nodemanager.LinuxContainerExecutor")
    handler = f"{NM}linux-container-executor.resources-handler.class"
    assert back[handler] is None, "its class leaves with the jar"
    said = run("--hadoop-conf", str(confs["gpu-nodes"]), "--remove", "--format", "emr").output
    assert f"   remove these keys: {handler}\n" in said
    assert '""' not in said, "an empty value is not an absent one"


def test_removal_restores_the_original_after_any_number_of_installs(tmp_path: Path) -> None:
    confs, rm = machines(samples.BIGTOP, tmp_path / "machines"), tmp_path / "machines" / "resourcemanagers"
    for number, words in enumerate(
        (
            ("watch", "--gpus", "2"),
            ("all", "--gpus", "4"),
            ("all", "--gpus", "4"),
            ("watch", "--gpus", "4"),
        )
    ):
        apply(confs, tmp_path / str(number), "--hadoop", "3.3", "--stage", *words)
    apply(confs, tmp_path / "back", "--remove")
    for kind, conf in confs.items():
        for file_name, site_before in samples.BIGTOP.items():
            assert read_site(conf / file_name) == dict(site_before), (kind, file_name)
    assert read_site(confs["gpu-nodes"] / "node-resources.xml") == {}
    said = run("--hadoop-conf", str(rm), "--remove").output
    assert said.startswith("nothing changes\n")
    assert "isonomy.yaml: remove it from" in said
    apply(confs, tmp_path / "5", "--hadoop", "3.3", "--stage", "watch")  # and once more
    apply(confs, tmp_path / "back-again", "--remove")
    assert read_site(rm / "yarn-site.xml") == dict(samples.BIGTOP["yarn-site.xml"])


def test_copies_have_the_permissions_of_the_originals(tmp_path: Path) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    (conf / "yarn-site.xml").chmod(0o640)
    planned(conf, "--hadoop", "3.4.2-amzn-0", "--apply", str(tmp_path / "out"))
    assert (tmp_path / "out" / "resourcemanagers" / "yarn-site.xml").stat().st_mode & 0o777 == 0o640


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
    result = run(
        "--hadoop-conf",
        str(samples.write(samples.EMR, tmp_path / "conf")),
        "--hadoop",
        "3.4",
        "--apply",
        str(tmp_path / "file" / "out"),
    )
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


def test_the_plan_is_a_run_book_with_the_remaining_findings(tmp_path: Path) -> None:
    conf = samples.write(samples.BIGTOP, tmp_path / "conf")
    result = run("--hadoop-conf", str(conf), "--hadoop", "3.3", "--stage", "queue", "--queues", "root.research")
    assert result.exit_code == 1
    assert f"   yarn-site.xml (GPU nodes)\n     - {NM}container-executor.class = org.apache" in result.output
    assert f"  + {NM}container-executor.class = isonomy.nm.IsonomyLinuxContainerExecutor\n" in result.output
    assert f"  - {NM}resource-plugins = yarn.io/gpu\n" in result.output
    assert f"  + {NM}linux-container-executor.resources-handler.class = isonomy.nm.GpuDevices\n" in result.output
    assert f"   * install -m 0755 confs/nodemanager/isonomy-devices {DENIES}\n" in result.output
    assert "   * isonomy mode on --queues root.research\n" in result.output
    assert "error: core-site.xml: hadoop.security.auth_to_local: " in result.output
    assert "say each machine's number of GPUs" in result.output


@pytest.mark.parametrize(
    ("change", "words", "why"),
    [
        ({f"{RM}scheduler.class": "org.x.FairScheduler"}, ("--hadoop", "3.4"), "extends CapacityScheduler alone"),
        (
            {f"{NM}container-executor.class": "org.x.Own"},
            ("--hadoop", "3.4", "--stage", "all"),
            "is org.x.Own; ours extend",
        ),
        ({}, ("--hadoop", "2.10"), "must be 3.3 or 3.4 or 3.5"),
        ({}, (), "--hadoop is absent"),
        ({}, ("--hadoop", "3.4", "--apply", "CONF"), "in the cluster's own configuration"),
        ({}, ("--hadoop", "3.4", "--apply", "CONF/new"), "in the cluster's own configuration"),
        ({}, ("--hadoop", "3.4", "--stage", "queue"), "give both or none"),
        ({}, ("--hadoop", "3.4", "--queues", "root.a"), "give both or none"),
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


@pytest.mark.parametrize(
    ("home", "common", "library"),
    [
        ("opt/hadoop-3.4.2", "opt/hadoop-3.4.2/share/hadoop/common", "opt/hadoop-3.4.2/share/hadoop/yarn/lib"),
        ("usr/lib/hadoop", "usr/lib/hadoop", "usr/lib/hadoop-yarn/lib"),
        ("usr/lib/hadoop-yarn", "usr/lib/hadoop", "usr/lib/hadoop-yarn/lib"),
        (
            "opt/cloudera/parcels/CDH/lib/hadoop",
            "opt/cloudera/parcels/CDH/lib/hadoop",
            "opt/cloudera/parcels/CDH/lib/hadoop-yarn/lib",
        ),
    ],
)
def test_version_and_place_of_jars_are_found_in_the_layouts_of_distributions(
    home: str, common: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    for folder in (home, common, library):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / common / "hadoop-common-3.4.2-amzn-0.jar").touch()
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path / home))
    assert "yarn.http.rmwebapp.external.classes" in [c["key"] for c in planned(conf)["changes"]]
    assert Distribution.here().library == tmp_path / library
    no_jars = f"none of its jars is in {tmp_path / library}"
    assert [f for f in planned(conf)["findings"] if no_jars in f["message"]]
    (tmp_path / library / "isonomy-yarn-rm.jar").touch()
    assert not [f for f in planned(conf)["findings"] if no_jars in f["message"]]


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
    text = sitefile.edited("x", COMMENTED, {"a": "<1>", "new": "2"})
    assert text == COMMENTED.replace("<value/>", "<value>&lt;1&gt;</value>").replace(
        "</configuration>", "  <property><name>new</name><value>2</value></property>\n</configuration>"
    )
    assert sitefile.edited("x", text, {"a": "", "new": None}).replace("<value></value>", "<value/>") == COMMENTED
    assert "b&amp;c" not in sitefile.edited("x", COMMENTED, {"b&c": None})


def test_a_file_that_cannot_be_edited_safely_is_refused() -> None:
    twice = COMMENTED.replace("</configuration>", "<property><name>b</name></property></configuration>")
    with pytest.raises(ConfigError, match="by hand"):
        sitefile.edited("x", twice, {"b": "1"})
    with pytest.raises(ConfigError, match="by hand"):
        sitefile.edited("x", "<configuration/>", {"a": "1"})


def test_a_pairs_control_planes_come_from_the_clusters_own_files(tmp_path: Path) -> None:
    conf = samples.write(distributions.CDP, tmp_path / "conf")
    planned(conf, "--hadoop", "3.4", "--apply", str(tmp_path / "out"))
    own = load_config(tmp_path / "out" / "resourcemanagers" / "isonomy.yaml")
    assert own.rm_web == "https://master1.example.com:8090,https://master2.example.com:8090"
    assert own.agents.advertise == "master1.example.com:26501,master2.example.com:26501"
    assert own.standby is not None
    assert own.standby.webhdfs == "https://master1.example.com:9871;https://master2.example.com:9871"
    conf = samples.write(samples.EMR, tmp_path / "single")
    planned(conf, "--hadoop", "3.4", "--apply", str(tmp_path / "one"))
    assert load_config(tmp_path / "one" / "resourcemanagers" / "isonomy.yaml").standby is None


def book(name: str, stage: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    sites, hadoop = distributions.ALL[name]
    conf = samples.write(sites, folder / name)
    found: list[dict[str, Any]] = planned(conf, "--hadoop", hadoop, "--stage", stage, *words)["steps"]
    return found


def test_a_run_book_goes_through_the_stages_by_class_of_host(tmp_path: Path) -> None:
    steps = book("cdp", "queue", tmp_path, "--queues", "root.prod", "--gpus", "8")
    assert [(s["stage"].partition(":")[0], s["hosts"].split(" (")[0].partition(",")[0]) for s in steps] == [
        ("watch", "ResourceManagers"),
        ("watch", "ResourceManagers"),
        ("executors", "GPU nodes"),
        ("queue", "gateways"),
        ("queue", "anywhere"),
    ]
    assert "(master1.example.com, master2.example.com)" in steps[0]["hosts"]
    prepare, restart, nodes, _gateways, switch = steps
    assert [c["key"] for s in (prepare, restart) for c in s["changes"] if "nodemanager" in c["key"]] == []
    orders = (
        (prepare, ("tokens.key of the first one", "enable --now")),  # a control plane makes its own where there is none
        (restart, ("preflight", "restart", "mode shadow")),
        (nodes, ("empty", "preflight", "restart", "its name out")),
    )
    for step, order in orders:
        at = [next(i for i, act in enumerate(step["do"]) if word in act) for word in order]
        assert at == sorted(at), f"in this order: {order}"
    assert "the standby first" in restart["do"][1]
    assert restart["containers"].endswith("continue")
    assert switch["do"][0] == "isonomy mode on --queues root.prod"
    assert switch["undo"].startswith("isonomy mode shadow")
    assert "isonomy mode shadow" in restart["do"], "a mode that nobody stored is off"
    assert all(s["undo"] for s in steps)
    total = planned(tmp_path / "cdp", "--hadoop", "3.4", "--stage", "queue", "--queues", "root.prod", "--gpus", "8")
    keys = {(c["key"], c["new"]) for s in steps for c in s["changes"]}
    assert {(c["key"], c["new"]) for c in total["changes"]} <= keys, "no change is outside the steps"


@pytest.mark.parametrize(
    ("name", "v1", "v2"),
    [
        ("emr", "/spark-rapids-cgroup/devices/yarn", "/spark-rapids-cgroup/yarn"),
        ("cdp", "/sys/fs/cgroup/devices/hadoop-yarn", "/sys/fs/cgroup/hadoop-yarn"),
    ],
)
def test_the_run_book_makes_the_cgroup_in_which_the_executor_looks(name: str, v1: str, v2: str, tmp_path: Path) -> None:
    (nodes,) = [s for s in book(name, "executors", tmp_path) if s["hosts"].startswith("GPU nodes")]
    said = "\n".join(nodes["do"])
    assert f"echo 'd {v2} 0755 yarn hadoop' > /etc/tmpfiles.d/isonomy-nm.conf, with cgroup v1 {v1}; systemd-" in said
    assert f"isonomy-bootstrap ARCHIVE SETTINGS {v2}" in said


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("emr", "/mnt/isonomy-evidence.jsonl"),
        ("dataproc", "/tmp/hadoop-yarn/isonomy-evidence.jsonl"),
    ],
)
def test_the_run_book_says_which_record_is_rotated(name: str, file: str) -> None:
    conf = Path(__file__).with_name("trial") / name
    (nodes,) = [s for s in planned(conf, "--hadoop", "3.4", "--stage", "executors")["steps"] if "GPU" in s["hosts"]]
    assert f"put systemd/isonomy.logrotate where its first line says, for {file}" in nodes["do"]


def test_every_command_of_the_run_book_is_complete(tmp_path: Path) -> None:
    """Those of `isonomy`, as a shell on the machine would run them."""
    for step in book("cdp", "all", tmp_path):
        for text in (*step["do"], step["undo"]):
            for command in re.findall(r"\bisonomy (?:install|preflight|mode|status|queue)\b[^;:,]*", text):
                words = [str(tmp_path / "cdp") if w == "/etc/hadoop/conf" else w for w in command.split()[1:]]
                words = words[: words.index("writes")] if "writes" in words else words
                words = [str(tmp_path / "back") if w == "OUT" else w for w in words]
                said = CliRunner().invoke(main, words, env={"ISONOMY_RM": "127.0.0.1:1"})
                assert said.exit_code != 2, said.output


@pytest.mark.parametrize(
    ("key", "containers"),
    [
        ("recovery.enabled", "and applications END"),
        ("", "of both kinds"),
    ],
)
def test_the_run_book_says_what_the_restart_of_the_resourcemanager_does(
    key: str, containers: str, tmp_path: Path
) -> None:
    sites = dict(distributions.DATAPROC["yarn-site.xml"])
    sites.pop(f"{RM}{key}", None)
    conf = samples.write({**distributions.DATAPROC, "yarn-site.xml": sites}, tmp_path)
    assert planned(conf, "--hadoop", "3.3")["steps"][1]["containers"].startswith(containers)


@pytest.mark.parametrize(
    ("recovery", "containers"),
    [
        ({}, "END with their NodeManager"),
        ({"enabled": "true"}, "END at an ordinary stop"),
        ({"enabled": "true", "supervised": "true"}, "continue"),
    ],
)
def test_the_run_book_says_what_the_restart_of_other_nodemanagers_does(
    recovery: dict[str, str], containers: str, tmp_path: Path
) -> None:
    """A new type of resource goes to all machines."""
    old = {k: v for k, v in distributions.DATAPROC["yarn-site.xml"].items() if f"{NM}recovery" not in k}
    sites = {**old, **{f"{NM}recovery.{k}": v for k, v in recovery.items()}}
    types = {"yarn.resource-types": "fpga"}
    conf = samples.write({**distributions.DATAPROC, "yarn-site.xml": sites, "resource-types.xml": types}, tmp_path)
    (everywhere,) = [
        s
        for s in planned(conf, "--hadoop", "3.3", "--stage", "executors")["steps"]
        if s["hosts"].startswith("all machines")
    ]
    assert everywhere["containers"].startswith(containers)
    assert [c["new"] for c in everywhere["changes"]] == ["fpga,yarn.io/gpu"]


def test_a_run_book_begins_where_the_cluster_is_and_leads_back_in_reverse(tmp_path: Path) -> None:
    confs = machines(distributions.EMR, tmp_path / "m")
    one = samples.write(distributions.EMR, tmp_path / "one")
    planned(one, "--hadoop", "3.4", "--stage", "executors", "--apply", str(tmp_path / "out"))
    merged = dict(read_site(one / "yarn-site.xml"))
    for kind in ("resourcemanagers", "gpu-nodes"):
        merged |= read_site(tmp_path / "out" / kind / "yarn-site.xml")
    merged[f"{RM}scheduler.class"] = "isonomy.yarn.IsonomyScheduler"
    merged.pop(f"{NM}resource-plugins")
    samples.write({**distributions.EMR, "yarn-site.xml": merged}, one)
    _gateways, step = planned(one, "--hadoop", "3.4", "--stage", "all")["steps"]
    assert "isonomy mode on --queues root" in step["do"]
    apply(confs, tmp_path / "new", "--hadoop", "3.4", "--stage", "all")
    (back,) = planned(confs["gpu-nodes"], "--remove")["steps"]
    assert back["hosts"].startswith("GPU nodes")
    assert "end by themselves" in back["containers"], "YARN's plugin would give their GPUs out again"


@pytest.mark.parametrize("form", ["cm", "ambari", "emr", "dataproc"])
def test_each_tool_gets_every_change_in_its_own_form(form: str, tmp_path: Path) -> None:
    sites, hadoop = distributions.ALL["emr"]
    conf = samples.write({**sites, "resource-types.xml": {"yarn.resource-types": "fpga"}}, tmp_path / "conf")
    words = ("--hadoop", hadoop, "--stage", "all", "--gpus", "8")
    said = run("--hadoop-conf", str(conf), *words, "--format", form).output
    for change in planned(conf, *words)["changes"]:
        assert change["key"] in said
        assert (change["new"] or "") in said
    blocks = re.findall(r"^   ([\[{]$.*?^   [\]}])$", said, re.MULTILINE | re.DOTALL)
    if form == "dataproc":
        (word,) = shlex.split(next(line for line in said.splitlines() if "--properties" in line))
        assert word.startswith("--properties=^#^yarn:")
        assert "--name yarn.nodemanager.container-executor.class --value isonomy.nm." in said
        return
    found = [json.loads(block) for block in blocks]
    assert len(found) == 3
    if form == "emr":
        assert {c["Classification"] for block in found for c in block} == {"yarn-site"}
        assert f"{NM}resource-plugins" not in found[2][0]["Properties"]
        assert f"\n   remove these keys: {NM}resource-plugins" in said
    elif form == "cm":
        assert [b["items"][0]["name"] for b in found] == [
            "resourcemanager_config_safety_valve",
            "yarn_service_config_safety_valve",
            "nodemanager_config_safety_valve",
        ]
        ET.fromstring(f"<configuration>{found[0]['items'][0]['value']}</configuration>")
    else:
        assert found[0]["desired_config"][0]["type"] == "yarn-site"


def test_a_token_file_elsewhere_stays(tmp_path: Path) -> None:
    site = {**distributions.EMR["yarn-site.xml"], "isonomy.bridge.token-file": "/data/isonomy/bridge.token"}
    conf = samples.write({**distributions.EMR, "yarn-site.xml": site}, tmp_path)
    assert "isonomy.bridge.token-file" not in [c["key"] for c in planned(conf, "--hadoop", "3.4")["changes"]]


@pytest.mark.parametrize("element", ["xi:include", "include"])
def test_a_file_that_includes_another_is_refused_since_what_that_names_would_be_overridden(
    element: str, tmp_path: Path
) -> None:
    conf = samples.write(samples.EMR, tmp_path / "conf")
    file, part = conf / "yarn-site.xml", "<property><name>a</name><value>1</value></property>"
    (conf / "secure.xml").write_text(f"<configuration>{part}</configuration>")
    start = f'<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><{element} href="secure.xml"/>'
    file.write_text(file.read_text().replace("<configuration>", start))
    result = run("--hadoop-conf", str(conf), "--hadoop", "3.4")
    assert result.exit_code == 1
    assert f"{file}: includes secure.xml, which is not read; move its properties into this file" in result.output
    assert result.output.count("\n") == 1
