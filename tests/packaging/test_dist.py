"""The contents of `make dist`, and that the build is reproducible."""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import io
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pycontrol.cli import COMMANDS
from submarine_patch.cli import stock
from tests.submarine.test_cli import SUBMARINE_SITE

LONG = "charset_normalizer-3.4.3-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl"
"""A name as on PyPI, too long for the oldest tar format."""
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist", REPO / "packaging" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shared(dist: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The man page and the completions."""
    folder = tmp_path_factory.mktemp("built")
    dist.share(folder)
    return Path(folder, "share")


@pytest.fixture
def wheels(tmp_path: Path, dist: ModuleType, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel, and jars if this checkout has not built them."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "isonomy-0.3.0-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "wheels" / "wheelhouse").mkdir()
    (tmp_path / "wheels" / "wheelhouse" / LONG).write_bytes(b"long")
    for place in dist.JARS:
        (tmp_path / Path(place).name).write_bytes(place.encode())
    monkeypatch.setattr(dist, "JARS", {place: str(tmp_path) for place in dist.JARS})
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "submarine-client-0.6.0.jar").write_bytes(b"stock")
    monkeypatch.setattr(dist, "FOLDERS", {**dist.FOLDERS, "submarine/lib": str(tmp_path / "lib")})
    shutil.copytree(shared, tmp_path / "wheels" / "share")
    return tmp_path / "wheels"


def test_the_archive_has_all_of_an_installation(dist: ModuleType, wheels: Path) -> None:
    data = dist.archive("isonomy-0.3.0-hadoop3", dist.contents(wheels), 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        assert {m.mtime for m in tar.getmembers()} == {1_700_000_000}
        assert {(m.uid, m.uname) for m in tar.getmembers()} == {(0, "")}
        modes = {m.name: m.mode for m in tar.getmembers()}
        sums = tar.extractfile("isonomy-0.3.0-hadoop3/SHA256SUMS")
        unit = tar.extractfile("isonomy-0.3.0-hadoop3/systemd/isonomy.service")
        assert sums is not None
        assert unit is not None
        for line in sums.read().decode().splitlines():
            digest, place = line.split("  ")
            file = tar.extractfile(f"isonomy-0.3.0-hadoop3/{place}")
            assert file is not None
            assert hashlib.sha256(file.read()).hexdigest() == digest
    folders = ("confs", "docs", "submarine_patch/examples")
    tracked = subprocess.run(["git", "ls-files", *folders], cwd=REPO, capture_output=True, text=True, check=True)
    assert {n.removeprefix("isonomy-0.3.0-hadoop3/") for n in names} == {
        *(f for f in tracked.stdout.splitlines() if f != "docs/generate.py"),
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "NOTICE",
        "README.md",
        "SHA256SUMS",
        "dev-cluster/topology.yaml",
        "jars/isonomy-yarn-nm.jar",
        "jars/isonomy-yarn-rm.jar",
        "licenses/others.txt",
        "licenses/protobuf.txt",
        "licenses/py4j.txt",
        "python/isonomy-0.3.0-py3-none-any.whl",
        "python/lock.txt",
        f"python/wheelhouse/{LONG}",
        "share/bash-completion/completions/isonomy",
        "share/fish/vendor_completions.d/isonomy.fish",
        "share/man/man1/isonomy.1",
        "share/zsh/site-functions/_isonomy",
        "submarine/isonomy-am.jar",
        "submarine/lib/isonomy-submarine-runtime.jar",
        "submarine/lib/submarine-client-0.6.0.jar",
        "systemd/isonomy.logrotate",
        "systemd/isonomy.service",
        "systemd/isonomy.sysusers",
        "systemd/isonomy.tmpfiles",
    }
    assert modes["isonomy-0.3.0-hadoop3/confs/nodemanager/isonomy-bad-gpus"] == 0o755


def test_the_same_sources_give_the_same_bytes(dist: ModuleType, wheels: Path) -> None:
    files = dist.contents(wheels)
    first = dist.archive("x", files, 7)
    assert dist.archive("x", dict(reversed(files.items())), 7) == first


def test_a_jar_that_is_missing_is_named(dist: ModuleType, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (wheels.parent / "isonomy-am.jar").unlink()
    with pytest.raises(SystemExit, match=r"isonomy-am\.jar: missing; `make java`"):
        dist.contents(wheels)


def test_without_the_stock_command_line_there_is_no_archive(dist: ModuleType, wheels: Path) -> None:
    (wheels.parent / "lib" / "submarine-client-0.6.0.jar").unlink()
    with pytest.raises(SystemExit, match=r"lib: missing; `make java`"):
        dist.contents(wheels)


def test_the_man_page_has_each_command_and_the_completions_ask_the_command(shared: Path) -> None:
    page = (shared / "man/man1/isonomy.1").read_text()
    assert re.findall(r"^\.SS isonomy (\w+)$", page, re.MULTILINE) == [*COMMANDS]
    assert all(line[:1] == "." or line[:2] == r"\&" for line in page.splitlines()[3:])
    places = {"bash": "bash-completion/completions", "zsh": "zsh/site-functions", "fish": "fish/vendor_completions.d"}
    for shell, folder in places.items():
        (place,) = (shared / folder).iterdir()
        assert f"_ISONOMY_COMPLETE={shell}_complete" in place.read_text()


@pytest.fixture
def unpacked(dist: ModuleType, wheels: Path, tmp_path: Path) -> Path:
    data = dist.archive("isonomy", dist.contents(wheels), 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(tmp_path / "opt", filter="data")
    return tmp_path / "opt" / "isonomy"


def test_a_submission_finds_all_that_it_needs_in_the_archive(unpacked: Path, tmp_path: Path) -> None:
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).write_text("<configuration/>")
    (tmp_path / "submarine-site.xml").write_text(SUBMARINE_SITE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    env = {"SUBMARINE_HOME": str(unpacked / "submarine"), "HADOOP_CONF_DIR": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    found = stock.find(env)
    assert found.am_jar == unpacked / "submarine" / "isonomy-am.jar"
    assert (found.lib / "submarine-client-0.6.0.jar").is_file()


def test_links_of_the_archives_documents_lead_somewhere_in_it(unpacked: Path) -> None:
    lost = []
    for page in unpacked.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = (t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", t))
        lost += [f"{page.name}: {t}" for t in targets if t and not (page.parent / t).exists()]
    assert lost == []


def test_what_the_shaded_jars_contain_has_its_licence() -> None:
    """pom.xml moves foreign classes below isonomy.shaded."""
    shaded = re.findall(r"<shadedPattern>isonomy\.shaded\.(\w+)<", (REPO / "pom.xml").read_text())
    notice = (REPO / "packaging" / "NOTICE").read_text()
    assert sorted([*shaded, "others"]) == sorted(f.stem for f in (REPO / "packaging" / "licenses").iterdir())
    assert all(f"- {name}: " in notice for name in shaded)


def test_a_jar_without_a_licence_is_named_in_the_notice(dist: ModuleType, tmp_path: Path) -> None:
    notice = (REPO / "packaging" / "NOTICE").read_text()
    inside = {"guava-1.0.jar": "META-INF/LICENSE.txt", "netty-codec-4.1.jar": "io/x", "other-1.0.Final.jar": "x/y"}
    for name, place in inside.items():
        with zipfile.ZipFile(tmp_path / name, "w") as jar:
            jar.writestr(place, "")
    assert dist.unlicensed(sorted(tmp_path.glob("*.jar")), notice) == ["other-1.0.Final.jar"]


@pytest.mark.parametrize("kind", ["service", "sysusers", "tmpfiles", "logrotate"])
def test_each_file_for_systemd_says_where_it_goes(kind: str) -> None:
    text = (REPO / "packaging" / f"isonomy.{kind}").read_text()
    assert re.match(r"# /(etc|usr/lib)/[\w./-]+/isonomy(\.\w+)?[ .;]", text)


def test_users_and_folders_are_those_of_the_unit() -> None:
    unit = (REPO / "packaging" / "isonomy.service").read_text()
    user, group = (re.search(rf"^{key}=(.*)$", unit, re.MULTILINE)[1] for key in ("User", "Group"))  # type: ignore[index]
    users = (REPO / "packaging" / "isonomy.sysusers").read_text()
    folders = (REPO / "packaging" / "isonomy.tmpfiles").read_text()
    assert f"u {user} -" in users
    assert f"g {group} -" in users
    assert f"d /var/lib/isonomy 0700 {user} {group} -" in folders
    assert "serve --config /etc/isonomy/isonomy.yaml" in unit
    assert "d /etc/isonomy " in folders


def test_evidence_is_never_cut_short() -> None:
    rules = (REPO / "packaging" / "isonomy.logrotate").read_text().partition("{")[2]
    assert "copytruncate" not in rules
    assert "nocreate" in rules


def test_the_unit_always_restarts_and_has_few_permissions() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(REPO / "packaging" / "isonomy.service")
    service = unit["Service"]
    assert service["Restart"] == "always"
    assert service["NoNewPrivileges"] == service["PrivateTmp"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["MemoryMax"] == "4G"
    assert int(service["WatchdogSec"]) == 120, "docs/operations.md: one that hangs for two minutes"
    assert service["StateDirectory"] == "isonomy"  # the only place that it may write to
    assert "isonomy serve --config" in service["ExecStart"]


PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in PROJECT["dependencies"]]


def has_bound_above(requirement: Requirement) -> bool:
    return any(s.operator in ("<", "<=", "==", "~=") for s in requirement.specifier)


def test_each_dependency_has_a_bound_above_and_its_locked_version_is_within(dist: ModuleType) -> None:
    lines = dist.LOCK.read_text().splitlines()
    versions = dict(line.split("==") for line in lines)
    assert list(versions) == sorted(versions)
    for requirement in requirements():
        assert has_bound_above(requirement), requirement
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize("extra", ["worker", "worker-gpu", "optuna", "tensorboard"])
def test_what_goes_onto_gpu_nodes_has_bounds_above_too(extra: str) -> None:
    assert all(map(has_bound_above, map(Requirement, PROJECT["optional-dependencies"][extra])))


def test_the_lock_has_all_that_its_packages_need(dist: ModuleType) -> None:
    locked = {line.partition("==")[0] for line in dist.LOCK.read_text().splitlines()}
    assert {line.partition("==")[0] for line in dist.locked().splitlines()} <= locked


@pytest.mark.parametrize("beside", ["py4j==0.10.9.7", "protobuf==5.29.6", "protobuf==6.33.0"])
def test_it_installs_beside_pyspark_3_5_and_tensorflow_2_19(beside: str) -> None:
    """PySpark 3.5 wants exactly this py4j; TensorFlow 2.19 a protobuf below 6."""
    name, _, version = beside.partition("==")
    (own,) = (r for r in requirements() if r.name == name)
    assert version in own.specifier


def test_messages_have_no_check_that_would_refuse_an_older_protobuf() -> None:
    for module in (REPO / "pycontrol" / "wire").rglob("*_pb2.py"):
        assert "ValidateProtobufRuntimeVersion" not in module.read_text(), module.name
