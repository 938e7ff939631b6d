"""The findings of `config check` in configurations like those of production clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli.config import config_group
from pycontrol.config import ConfigError, load_config
from pycontrol.hadoopconf import check, properties, render, rules
from pycontrol.hadoopconf.rules import auth_to_local, capacity_scheduler, yarn_site
from tests.hadoopconf import samples

NM = "yarn.nodemanager."
EXPECTED = {
    "bigtop": {
        ("error", "core-site.xml", "hadoop.security.auth_to_local"),
        ("error", "core-site.xml", "hadoop.http.filter.initializers"),
        ("error", "hdfs-site.xml", "dfs.block.access.token.enable"),
        ("error", "hdfs-site.xml", "dfs.http.policy"),
        ("error", "hdfs-site.xml", "dfs.web.authentication.kerberos.principal"),
        ("note", "yarn-site.xml", ""),
        ("note", "yarn-site.xml", f"{NM}runtime.linux.allowed-runtimes"),
        ("note", "capacity-scheduler.xml", "yarn.scheduler.capacity.root.default.user-limit-factor"),
    },
    "emr": {
        ("note", "yarn-site.xml", "yarn.resourcemanager.opportunistic-container-allocation.enabled"),
        ("note", "yarn-site.xml", "yarn.cluster.max-application-priority"),
        ("note", "yarn-site.xml", ""),
    },
    "dataproc": {
        ("error", "yarn-site.xml", "yarn.federation.enabled"),
        ("error", "yarn-site.xml", "yarn.scheduler.fair.allocation.file"),
        ("note", "yarn-site.xml", "yarn.scheduler.configuration.store.class"),
    },
}


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_the_traps_of_production_are_named_with_file_and_key(name: str, tmp_path: Path) -> None:
    folder = samples.write(samples.ALL[name], tmp_path)
    result = CliRunner().invoke(config_group, ["check", str(folder), "-o", "json"])
    found = {(f["level"], f["file"], f["key"]) for f in json.loads(result.output)["findings"]}
    assert result.exit_code == any(level == "error" for level, _, _ in EXPECTED[name])
    assert EXPECTED[name] <= found, EXPECTED[name] - found


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        ("DEFAULT", ""),
        ("RULE:[2:$1@$0]([ndr][nm]@EXAMPLE.ORG)s/.*/hdfs/\n RULE:[1:$1](x)s/a/b/g/L DEFAULT", ""),
        ("RULE:[1:$1@$0](.*@EXAMPLE.ORG)s/@.*///L\nDEFAULT", ""),
        ("RULE:[2:$1@$0]((nn|dn)@EXAMPLE.ORG)s/.*/hdfs/ DEFAULT", "a filter may hold no )"),
        ("RULE:[2:$1(x)s/.*/y/", "cannot be understood"),
        ("RULE:[2:$1]([a)s/.*/y/", "a filter may hold no )"),
    ],
)
def test_rules_of_principals_are_read_as_hadoop_reads_them(rules: str, wrong: str) -> None:
    found = auth_to_local(rules)
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_a_rendered_secure_cluster_has_no_errors(tmp_path: Path) -> None:
    pem = samples.pem(tmp_path / "x.pem")
    tls = {f"tls_{k}": str(pem) for k in ("cert", "key", "ca")}
    rules = "RULE:[2:$1@$0]([ndr][nm]@EXAMPLE.ORG)s/.*/yarn/ DEFAULT"
    over = {"security": {"kerberos": True, "auth_to_local": rules}, "isonomy": tls}
    render.write(render.render(over), tmp_path / "conf")
    assert [str(f) for f in check.check(tmp_path / "conf") if f.level == "error"] == []
    for key, finding in (("tls_cert", "agents.tls"), ("https", "dfs.http.policy")):
        section = "security" if key == "https" else "isonomy"
        changed = {**over, section: {**over[section], key: False if key == "https" else None}}  # type: ignore[dict-item]
        render.write(render.render(changed), tmp_path / key)
        assert [f.key for f in check.check(tmp_path / key) if f.level == "error"] == [finding]


def test_requesting_users_tokens_needs_a_proxy_user_limited_to_named_groups(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("x")
    pem.chmod(0o600)
    own = {
        **{f"tls_{k}": str(pem) for k in ("cert", "key", "ca")},
        "tokens_webhdfs": "https://nn:9871",
        "tokens_principal": "isonomy/rm@EXAMPLE.ORG",
        "tokens_keytab": str(pem),
    }

    def found(k: int, may: dict[str, str]) -> list[tuple[str, str]]:
        over = {"security": {"kerberos": True, "proxy_users": {"isonomy": may}}, "isonomy": own}
        render.write(render.render(over), tmp_path / str(k))
        return [(f.level, f.key) for f in check.check(tmp_path / str(k)) if "proxyuser" in f.key]

    key = "hadoop.proxyuser.isonomy."
    assert found(1, {"hosts": "rm", "groups": "research"}) == []
    assert found(2, {}) == [("error", f"{key}groups")]
    assert found(3, {"users": "ann"}) == [("error", f"{key}hosts")]
    assert found(4, {"hosts": "*", "users": "*"}) == [("note", f"{key}hosts"), ("note", f"{key}users")]


def test_users_tokens_do_not_cross_the_network_in_the_clear(tmp_path: Path) -> None:
    file = tmp_path / "isonomy.yaml"
    own = "hdfs_tokens: {webhdfs: 'http://n:1', principal: a@R, keytab: k}\nstate_dir: s\n"
    file.write_text(f"{own}agents: {{host: 0.0.0.0}}")
    with pytest.raises(ConfigError, match=r"in the clear; set agents\.tls"):
        load_config(file)
    file.write_text(f"{own}agents: {{host: 127.0.0.1}}")
    tokens = load_config(file).hdfs_tokens
    assert tokens is not None
    assert tokens.keytab == tmp_path / "k", "relative to the file"


def test_containers_are_confined_to_their_gpus_if_configured() -> None:
    asked = {"executor": "linux", "linux_confine": True, "gpus": 3, "linux_path": "/opt/container-executor"}
    files = render.render({"nodemanager": asked})
    site = files["yarn-site.xml"]
    assert f"<name>{NM}linux-container-executor.resources-handler.class</name>" in site
    assert "<value>isonomy.nm.GpuDevices</value>" in site
    assert "<value>/opt/container-executor</value>" in site
    assert "<value>0,1,2</value>" in site
    plain = render.render({"nodemanager": {"executor": "linux"}})
    assert "GpuDevices" not in plain["yarn-site.xml"]


def test_a_cluster_without_kerberos_needs_none_of_this() -> None:
    assert list(rules.secure({"core-site.xml": {}, "hdfs-site.xml": {}}, None)) == []


def test_an_executor_of_ours_beside_yarns_gpu_plugin_is_an_error() -> None:
    site = {
        f"{NM}container-executor.class": "isonomy.nm.IsonomyLinuxContainerExecutor",
        f"{NM}resource-plugins": "yarn.io/fpga, yarn.io/gpu",
    }
    found = {f.key: f for f in [*yarn_site(site), *properties.findings({"yarn-site.xml": site}, "", True)]}
    assert found[f"{NM}resource-plugins"].level == "error"
    assert "must be yarn.io/fpga (got" in found[f"{NM}resource-plugins"].message
    assert "group" in "".join(found)
    assert "nobody" in found[f"{NM}linux-container-executor.nonsecure-mode.limit-users"].message
    site[f"{NM}resource-plugins"] = "yarn.io/fpga"
    keys = {f.key for f in properties.findings({"yarn-site.xml": site}, "", True)}
    assert f"{NM}resource-plugins" not in keys


def test_a_limit_that_hadoop_3_3_misunderstands_is_noted() -> None:
    prefix = "yarn.scheduler.capacity.root"
    site = {f"{prefix}.queues": "a", f"{prefix}.a.capacity": "100", f"{prefix}.a.user-limit-factor": "-1"}
    (found,) = capacity_scheduler(site)
    assert "Hadoop 3.3" in found.message


@pytest.mark.parametrize(
    ("version", "key"), [("3.3", "yarn.http.rmwebapp.external.classes"), ("3.5", "yarn.webapp.custom.webservice.class")]
)
def test_the_rest_has_its_versions_key_and_the_check_knows_both(tmp_path: Path, version: str, key: str) -> None:
    render.write(render.render({"yarn": {"hadoop": version, "require_executor": False}}), tmp_path)
    text = (tmp_path / "yarn-site.xml").read_text()
    assert key in text
    assert ("IsonomyExternalResource" in text) == (version == "3.3")
    assert [f.key for f in check.check(tmp_path) if f.level == "error"] == []
    assert "isonomy.scheduler.require-executor" in [f.key for f in check.check(tmp_path)]


def test_findings_that_depend_on_hadoops_version_need_a_known_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    render.write(render.render({"queues": {"user_limit_factor": -1}}), tmp_path / "conf")

    def found(*words: str) -> set[tuple[str, str]]:
        result = CliRunner().invoke(config_group, ["check", str(tmp_path / "conf"), *words, "-o", "json"])
        return {(f["key"], f["message"]) for f in json.loads(result.output)["findings"]}

    plain = found()
    assert found("--hadoop", "3.5.0") == plain
    (old, message), (key, other) = sorted(found("--hadoop", "3.4.2") - plain)
    assert (old, key) == ("yarn.http.rmwebapp.external.classes", "yarn.webapp.custom.webservice.class")
    assert "must be isonomy.yarn.IsonomyExternalResource (got nothing)" in message
    assert "must be absent (got isonomy.yarn.IsonomyWebServices)" in other
    ends = {"class", "classes", "user-limit-factor"}
    assert {k.rpartition(".")[2] for k, _ in found("--hadoop", "3.3") - plain} == ends
    assert [m for _, m in found("--hadoop", "3.2") - plain] == ["is of Hadoop 3.2; Isonomy runs on 3.3, 3.4, 3.5"]
    lib = tmp_path / "home" / "share" / "hadoop" / "yarn" / "lib"
    lib.mkdir(parents=True)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path / "home"))
    ((key, message),) = found() - plain
    assert "none of its jars is in" in message
    (lib / "isonomy-yarn-nm.jar").touch()
    assert found() == plain
    render.write(render.render({"yarn": {"hadoop": "3.4"}}), tmp_path / "old")
    result = CliRunner().invoke(config_group, ["check", str(tmp_path / "old"), "--hadoop", "3.5"])
    assert "custom.webservice.class: must be isonomy.yarn.IsonomyWebServices (got nothing)" in result.output


def test_included_files_and_keys_that_every_executor_of_ours_reads(tmp_path: Path) -> None:
    file = tmp_path / "yarn-site.xml"
    file.write_text(
        '<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="more.xml"/><property>'
        "<name>isonomy.nm.gpu-minors</name><value>0,1</value></property></configuration>"
    )
    found = check.check(file)
    assert [f.message for f in found if f.level == "note" and "xi:include" in f.message] == [
        "includes more.xml (xi:include), which is not read here; check that file, too"
    ]
    assert [f for f in found if "unknown key" in f.message] == []


def test_web_apps_with_kerberos_have_a_principal_and_a_keytab() -> None:
    core = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.http.filter.initializers": rules.FILTER,
        "hadoop.http.authentication.type": "kerberos",
    }
    found = {
        f.key.removeprefix("hadoop.http.authentication.")
        for f in rules.secure({"core-site.xml": core}, None)
        if f.level == "error"
    }
    assert found == set(), "a client's file"
    core["hadoop.http.authentication.kerberos.keytab"] = "/etc/http.keytab"
    (wrong,) = (f for f in rules.secure({"core-site.xml": core}, None) if f.level == "error")
    assert wrong.key == "hadoop.http.authentication.kerberos.principal"
