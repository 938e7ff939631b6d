"""The templates and the checks of what they make."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pycontrol.cli.config import config_group
from pycontrol.config import ConfigError, load_config
from pycontrol.hadoopconf import check, render, rules
from pycontrol.hadoopconf.sitefile import read_site, rm_web_url
from tests.hadoopconf import samples


def run(*arguments: str) -> Result:
    return CliRunner().invoke(config_group, list(arguments))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    out = tmp_path / "conf"
    settings = ("core.racks={n1: rack-a}", "isonomy.lease_s=30", "yarn.rm_web='rm:8088'", "nodemanager.gpus=4")
    result = run("render", "--out", str(out), *(word for s in settings for word in ("--set", s)))
    assert result.exit_code == 0, result.output
    return out


def test_every_default_has_a_comment() -> None:
    text = (render.confs_dir() / "defaults.yaml").read_text()
    bare = [line for line in text.splitlines() if re.match(r"\s+\S+:", line) and "  # " not in line]
    assert bare == []


def test_rendered_files_are_right_and_pass_the_check(conf: Path) -> None:
    scheduler = read_site(conf / "yarn-site.xml")["yarn.resourcemanager.scheduler.class"]
    assert scheduler == "isonomy.yarn.IsonomyScheduler"
    assert read_site(conf / "node-resources.xml") == {"yarn.nodemanager.resource-type.yarn.io/gpu": "4"}
    assert (conf / "rack-table.txt").read_text() == "n1 /rack-a\n"
    config = load_config(conf / "isonomy.yaml")
    assert (config.lease_s, config.lead_s, config.rm_web) == (30, 6, "http://rm:8088")
    assert rm_web_url(None, conf) == "http://rm:8088"
    result = run("check", str(conf), "-o", "json")
    assert (result.exit_code, json.loads(result.output)["errors"]) == (0, 0)


def test_the_written_files_are_listed_as_json(tmp_path: Path) -> None:
    listed = json.loads(run("render", "--out", str(tmp_path / "conf"), "-o", "json").output)["files"]
    assert sorted(listed) == sorted(map(str, (tmp_path / "conf").iterdir()))


def test_a_pair_of_resourcemanagers(tmp_path: Path) -> None:
    over = {"yarn": {"rm_hosts": {"rm1": "a", "rm2": "b"}, "rm_id": "rm2", "rm_web": "0.0.0.0:8888"}}
    render.write(render.render(over), tmp_path)
    found = json.loads(run("check", str(tmp_path), "-o", "json").output)
    assert [f["key"] for f in found["findings"] if f["level"] == "error"] == ["agents.advertise", "standby"]
    own = {"agents_advertise": "a:1,b:1", "standby_webhdfs": "http://n:9870"}
    render.write(render.render({**over, "isonomy": own}), tmp_path)
    site = read_site(tmp_path / "yarn-site.xml")
    prefix = "yarn.resourcemanager."
    assert (site[f"{prefix}ha.rm-ids"], site[f"{prefix}ha.id"]) == ("rm1,rm2", "rm2")
    assert [site[f"{prefix}scheduler.address.{i}"] for i in ("rm1", "rm2")] == ["a:8030", "b:8030"]
    assert site[f"{prefix}store.class"].endswith(".ZKRMStateStore")
    assert rm_web_url(None, tmp_path) == load_config(tmp_path / "isonomy.yaml").rm_web == "http://a:8888,http://b:8888"
    result = run("check", str(tmp_path), "-o", "json")
    assert (result.exit_code, json.loads(result.output)["errors"]) == (0, 0)
    file = tmp_path / "yarn-site.xml"
    file.write_text(file.read_text().replace("a:8888", "${yarn.resourcemanager.hostname.rm1}:8888"))
    assert rm_web_url(None, tmp_path) == "http://a:8888,http://b:8888"


def test_exchange_reaches_the_control_plane(tmp_path: Path) -> None:
    how = {"traders": {"root.a": ["alice"]}}
    (tmp_path / "isonomy.yaml").write_text(
        render.render({"isonomy": {"cells": "cells.yaml", "exchange": {"mode": "manual", **how}}})["isonomy.yaml"]
    )
    config = load_config(tmp_path / "isonomy.yaml")
    assert config.exchange.model_dump() == how


def test_the_script_that_names_bad_gpus_is_told_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text(
        render.render({"nodemanager": {"gpus": 8, "bad_gpus_script": "/opt/isonomy-bad-gpus"}})["yarn-site.xml"]
    )
    site, provider = read_site(tmp_path / "yarn-site.xml"), "yarn.nodemanager.node-attributes.provider"
    assert site[provider] == "script"
    assert (site[f"{provider}.script.path"], site[f"{provider}.script.opts"]) == ("/opt/isonomy-bad-gpus", "8")


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("isonomy.leas_s=3", "isonomy.leas_s: unknown key, did you mean isonomy.lease_s?"),
        ("isonomy.exchange={trader: {}}", "isonomy.yaml: exchange.trader: unknown key, did you mean traders?"),
        ("isonomy.lease_s=0", "isonomy.yaml: lease_s: must be > 0 (got 0)"),
        ("yarn.node_expiry_ms=soon", "yarn.node_expiry_ms: must be a number (got soon)"),
        ("yarn.scheduler=fair", "yarn.scheduler: must be isonomy or capacity (got fair)"),
        ("lease_s", "--set lease_s: must be section.key=value, as in isonomy.lease_s=60"),
    ],
)
def test_a_wrong_setting_writes_nothing(tmp_path: Path, setting: str, line: str) -> None:
    result = run("render", "--out", str(tmp_path / "out"), "--set", setting)
    assert (result.exit_code, result.output.strip()) == (1, f"error: {line}")
    assert not (tmp_path / "out").exists()


def test_values_are_escaped() -> None:
    with pytest.raises(ConfigError, match="is a section"):
        render.render({"core": 3})
    assert "<value>a&amp;b</value>" in render.render({"core": {"tmp_dir": "a&b"}})["core-site.xml"]


def test_a_token_file_open_to_others_is_an_error(conf: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o644)
    file = tmp_path / "isonomy.yaml"
    file.write_text(f"bridge: {{token_file: {token}}}\n")
    result = run("check", str(file))
    assert result.exit_code == 1
    assert f"bridge.token_file: {token}: mode 0644 lets others read the secret; run chmod 600 {token}" in result.output
    token.chmod(0o600)
    assert run("check", str(file)).exit_code == 0
    token.write_text("short")
    assert "64 hexadecimal characters" in run("check", str(file)).output


def test_rest_of_older_hadoops_is_right_too(conf: Path) -> None:
    site = conf / "yarn-site.xml"
    text = site.read_text().replace("yarn.webapp.custom.webservice.class", "yarn.http.rmwebapp.external.classes")
    site.write_text(text.replace("isonomy.yarn.IsonomyWebServices", "isonomy.yarn.IsonomyExternalResource"))
    assert run("check", str(conf)).exit_code == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "yarn-site.xml",
            "isonomy.yarn.IsonomyScheduler",
            "x.Y",
            "yarn.resourcemanager.scheduler.class: is x.Y; Isonomy extends",
        ),
        (
            "yarn-site.xml",
            "isonomy.bridge.queue-size",
            "isonomy.bridge.queue-sizes",
            "unknown key, did you mean isonomy.bridge.queue-size?",
        ),
        ("yarn-site.xml", ">26500<", ">26600<", "port: is 26600, but isonomy.yaml: bridge.port is 26500"),
        ("yarn-site.xml", "</configuration>", "", "yarn-site.xml: is not XML"),
        (
            "yarn-site.xml",
            "</configuration>",
            "<property><name>isonomy.scheduler.mode</name><value>off</value></property></configuration>",
            "note: yarn-site.xml: isonomy.scheduler.mode: is obsolete: an upgrade reads it once",
        ),
        (
            "capacity-scheduler.xml",
            "user-limit-factor</name><value>100</value>",
            "user-limit-factor</name><value>1</value>",
            "note: capacity-scheduler.xml: yarn.scheduler.capacity.root.research.user-limit-factor: is 1: one user",
        ),
        (
            "capacity-scheduler.xml",
            "<value>100</value>",
            "<value>80</value>",
            "note: capacity-scheduler.xml: yarn.scheduler.capacity.root.prod.maximum-capacity: is 80",
        ),
        ("capacity-scheduler.xml", "<value>45</value>", "<value>40</value>", "must add up to 100 (got 90)"),
        ("resource-types.xml", "yarn.io/gpu", "fpga", "yarn.resource-types: must be fpga,yarn.io/gpu (got fpga)"),
        ("isonomy.yaml", "f: 0.8", "f: 2", "isonomy.yaml: f: must be <= 1 (got 2)"),
        ("submarine-site.xml", "IsonomyRuntimeFactory", "Other", "submarine.runtime.class: must be isonomy"),
    ],
)
def test_each_error_names_file_and_key(conf: Path, file: str, old: str, new: str, expected: str) -> None:
    text = (conf / file).read_text()
    assert old in text
    (conf / file).write_text(text.replace(old, new))
    result = run("check", str(conf))
    assert expected in result.output
    assert result.exit_code == (0 if expected.startswith("note") else 1)


@pytest.mark.parametrize(("most", "told"), [(None, True), ("0", True), ("1000", False)])
def test_priorities_among_apps_need_a_largest_one(tmp_path: Path, most: str | None, told: bool) -> None:
    key = "yarn.cluster.max-application-priority"
    found = [f for f in rules.yarn_site({} if most is None else {key: most}) if f.key == key]
    assert bool(found) == told
    (tmp_path / "yarn-site.xml").write_text(render.render({})["yarn-site.xml"])
    assert read_site(tmp_path / "yarn-site.xml")[key] == "1000"


def test_characters_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text('core: {racks: {n1: "a\\x1bb"}}\n')
    result = run("render", "--out", str(tmp_path / "conf"), "--values", str(values))
    assert result.exit_code == 1
    assert result.output == ("error: core.racks: has characters that no configuration file can hold (got 'a\\x1bb')\n")


def test_a_certificate_belongs_to_its_key(tmp_path: Path) -> None:
    own, other, file = samples.pem(tmp_path / "own.pem"), samples.pem(tmp_path / "other.pem"), tmp_path / "isonomy.yaml"

    def found(cert: Path, key: Path) -> list[str]:
        file.write_text(f"state_dir: .\nagents: {{tls: {{cert: {cert}, key: {key}, ca: {cert}}}}}\n")
        return [str(f) for f in check.check(file) if f.level == "error"]

    assert found(own, own) == []
    (said,) = found(own, other)
    assert said.startswith(f"error: isonomy.yaml: agents.tls.cert: {own} and {other} must be a certificate and")
    (said,) = found(own, tmp_path / "none.pem")
    assert "none.pem does not exist" in said
