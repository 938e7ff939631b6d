"""The contents of `make dist`, and that the build is reproducible."""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import io
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


@pytest.fixture
def wheels(tmp_path: Path, dist: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel, and jars if this checkout has not built them."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "isonomy-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "wheels" / "wheelhouse").mkdir()
    (tmp_path / "wheels" / "wheelhouse" / LONG).write_bytes(b"long")
    for jar in dist.JARS:
        (tmp_path / jar).write_bytes(jar.encode())
    monkeypatch.setattr(dist, "JARS", {jar: str(tmp_path) for jar in dist.JARS})
    return tmp_path / "wheels"


def test_the_archive_has_all_of_an_installation(dist: ModuleType, wheels: Path) -> None:
    data = dist.archive("isonomy-0.1.0-hadoop3", dist.contents(wheels), 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        assert {m.mtime for m in tar.getmembers()} == {1_700_000_000}
        assert {(m.uid, m.uname) for m in tar.getmembers()} == {(0, "")}
        modes = {m.name: m.mode for m in tar.getmembers()}
        sums = tar.extractfile("isonomy-0.1.0-hadoop3/SHA256SUMS")
        unit = tar.extractfile("isonomy-0.1.0-hadoop3/systemd/isonomy.service")
        assert sums is not None
        assert unit is not None
        for line in sums.read().decode().splitlines():
            digest, place = line.split("  ")
            file = tar.extractfile(f"isonomy-0.1.0-hadoop3/{place}")
            assert file is not None
            assert hashlib.sha256(file.read()).hexdigest() == digest
    assert {n.removeprefix("isonomy-0.1.0-hadoop3/") for n in names} == {
        "CHANGELOG.md", "INSTALL.md", "LICENSE", "OPERATIONS.md", "SECURITY.md", "SHA256SUMS",
        "confs/defaults.yaml", "confs/monitoring/isonomy.grafana.json", "confs/monitoring/isonomy.rules.yml",
        "confs/nodemanager/isonomy-bad-gpus", "confs/nodemanager/isonomy-bootstrap",
        *(f"confs/templates/{f.name}" for f in (REPO / "confs" / "templates").iterdir()),
        "jars/isonomy-am.jar", "jars/isonomy-submarine-runtime.jar", "jars/isonomy-yarn-nm.jar",
        "jars/isonomy-yarn-rm.jar", "python/isonomy-0.1.0-py3-none-any.whl", "python/lock.txt",
        f"python/wheelhouse/{LONG}",
        "systemd/isonomy.service",
    }  # fmt: skip
    assert modes["isonomy-0.1.0-hadoop3/confs/nodemanager/isonomy-bad-gpus"] == 0o755


def test_the_same_sources_give_the_same_bytes(dist: ModuleType, wheels: Path) -> None:
    files = dist.contents(wheels)
    first = dist.archive("x", files, 7)
    assert dist.archive("x", dict(reversed(files.items())), 7) == first


def test_a_jar_that_is_missing_is_named(dist: ModuleType, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (wheels.parent / "isonomy-am.jar").unlink()
    with pytest.raises(SystemExit, match=r"isonomy-am\.jar: missing; `make java`"):
        dist.contents(wheels)


def test_the_unit_always_restarts_and_has_few_permissions() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(REPO / "packaging" / "isonomy.service")
    service = unit["Service"]
    assert service["Restart"] == "always"
    assert service["NoNewPrivileges"] == service["PrivateTmp"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == "isonomy"  # the only place that it may write to
    assert "isonomy serve --config" in service["ExecStart"]


def requirements() -> list[Requirement]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


def test_each_dependency_has_a_bound_above_and_its_locked_version_is_within(dist: ModuleType) -> None:
    lines = dist.LOCK.read_text().splitlines()
    versions = dict(line.split("==") for line in lines)
    assert list(versions) == sorted(versions)
    for requirement in requirements():
        assert any(s.operator in ("<", "<=", "==", "~=") for s in requirement.specifier), requirement
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


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
