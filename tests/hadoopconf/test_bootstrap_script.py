"""The script that prepares nodes which autoscaling adds, with an archive and a root folder of its own."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from pycontrol.hadoopconf.preflight import DENIES
from pycontrol.hadoopconf.render import confs_dir

SCRIPT = confs_dir() / "nodemanager" / "isonomy-bootstrap"
FILES = {
    "jars/isonomy-yarn-nm.jar": b"jar",
    "python/isonomy-1.0-py3-none-any.whl": b"wheel",
    "python/wheelhouse/tensorflow_cpu-2.21-cp311.whl": b"other",
    "systemd/isonomy.sysusers": b"users",
    "systemd/isonomy.logrotate": b"rotation",
    "confs/nodemanager/isonomy-devices": b"helper",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return pack(tmp_path / "a.tar.gz", FILES)


def pack(file: Path, files: dict[str, bytes], sums: dict[str, bytes] = FILES) -> Path:
    digests = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sums.items())
    with tarfile.open(file, "w:gz") as tar:
        for name, data in {**files, "SHA256SUMS": digests.encode()}.items():
            entry = tarfile.TarInfo(f"isonomy-1.0-hadoop3/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file


def run(tmp_path: Path, *words: str | Path, gpus: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the script; `python3.12 -m venv` makes a pip that only notes its arguments, and python3.11 is broken."""
    programs = {
        "nvidia-smi": f"exit {0 if gpus else 9}",
        "aws": f'[ "$*" = "s3 cp s3://b/a.tar.gz $4" ] && cp {tmp_path}/a.tar.gz "$4"',
        "python3.11": "exit 1",
        "python3.12": '[ "$1" = -c ] && exit\n'
        f'mkdir -p "$3/bin"; printf \'#!/bin/sh\\necho "$@" > {tmp_path}/pip.args\\n\' > "$3/bin/pip"\n'
        'chmod +x "$3/bin/pip"',
    }
    (tmp_path / "bin").mkdir(exist_ok=True)
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    own = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "ISONOMY_ROOT": str(tmp_path / "root"), **env}
    return subprocess.run([SCRIPT, *words], env=own, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("layout", ["usr/lib/hadoop-yarn/lib", "opt/hadoop/share/hadoop/yarn/lib"])
def test_a_new_gpu_node_gets_jar_python_and_settings(layout: str, tmp_path: Path, archive: Path) -> None:
    root = tmp_path / "root"
    for folder in (layout, "sys/fs/cgroup/devices"):
        (root / folder).mkdir(parents=True)
    settings = tmp_path / "settings"
    settings.write_text(f"echo --name isonomy > {tmp_path}/set\n")
    done = run(tmp_path, archive, settings, HADOOP_HOME=str(root / "opt/hadoop"))
    assert (done.returncode, done.stdout) == (0, "isonomy: ready; its NodeManager may start\n"), done.stderr
    assert (root / layout / "isonomy-yarn-nm.jar").read_bytes() == b"jar"
    wheel = root / "opt/isonomy/python/isonomy-1.0-py3-none-any.whl"
    house = root / "opt/isonomy/python/wheelhouse"
    args = (tmp_path / "pip.args").read_text().split()
    assert args == ["install", "-q", "--no-index", "--find-links", str(house), f"{wheel}[worker]"]
    assert (tmp_path / "set").exists()
    assert (root / DENIES.lstrip("/")).stat().st_mode & 0o777 == 0o755
    assert (root / "etc/sudoers.d/isonomy").read_text() == f"yarn ALL=(root) NOPASSWD: {DENIES}\n"
    assert (root / "etc/tmpfiles.d/isonomy-nm.conf").read_text() == "d /sys/fs/cgroup/devices/hadoop-yarn 0755 yarn\n"
    assert (root / "usr/lib/sysusers.d/isonomy.conf").read_bytes() == b"users"
    assert (root / "etc/logrotate.d/isonomy").read_bytes() == b"rotation"


def test_emr_runs_it_before_hadoop_is_there_and_has_cgroups_elsewhere(tmp_path: Path, archive: Path) -> None:
    root = tmp_path / "root"
    for folder in ("emr/instance-controller", "spark-rapids-cgroup/devices"):
        (root / folder).mkdir(parents=True)
    done = run(tmp_path, archive, "", "/spark-rapids-cgroup/yarn")
    assert done.returncode == 0, done.stderr
    assert (root / "usr/lib/hadoop-yarn/lib/isonomy-yarn-nm.jar").read_bytes() == b"jar"
    tmpfiles = (root / "etc/tmpfiles.d/isonomy-nm.conf").read_text()
    assert tmpfiles == "d /spark-rapids-cgroup/devices/yarn 0755 yarn\n"


def test_without_wheels_the_tested_versions_come_from_an_index(tmp_path: Path) -> None:
    (tmp_path / "root/usr/lib/hadoop-yarn/lib").mkdir(parents=True)
    house = [name for name in FILES if "wheelhouse" in name]
    lean = {name: data for name, data in FILES.items() if name not in house} | {"python/lock.txt": b"x==1"}
    assert run(tmp_path, pack(tmp_path / "lean.tar.gz", lean, sums=lean)).returncode == 0
    args = (tmp_path / "pip.args").read_text().split()
    assert args[2:4] == ["-c", str(tmp_path / "root/opt/isonomy/python/lock.txt")]
    assert args[4].endswith(".whl")


def test_it_comes_from_the_clouds_store_too(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "root/usr/lib/hadoop-yarn/lib").mkdir(parents=True)
    assert archive.exists()
    assert run(tmp_path, "s3://b/a.tar.gz").returncode == 0


def test_under_a_strict_umask_users_can_still_reach_its_python(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "root/usr/lib/hadoop-yarn/lib").mkdir(parents=True)
    before = os.umask(0o077)
    try:
        assert run(tmp_path, archive).returncode == 0
    finally:
        os.umask(before)
    for folder in ("opt/isonomy", "opt/isonomy/venv/bin", "usr/local/sbin"):
        assert (tmp_path / "root" / folder).stat().st_mode & 0o777 == 0o755


def test_a_node_without_gpus_is_left_alone(tmp_path: Path, archive: Path) -> None:
    done = run(tmp_path, archive, gpus=False)
    assert (done.returncode, done.stdout) == (0, "isonomy: no GPUs here\n")
    assert not (tmp_path / "root").exists()


def test_a_damaged_archive_or_an_unknown_layout_keeps_the_node_out(tmp_path: Path) -> None:
    (tmp_path / "root/usr/lib/hadoop-yarn/lib").mkdir(parents=True)
    bad = pack(tmp_path / "bad.tar.gz", {**FILES, "jars/isonomy-yarn-nm.jar": b"other"})
    assert run(tmp_path, bad).returncode != 0
    assert not (tmp_path / "root/usr/lib/hadoop-yarn/lib/isonomy-yarn-nm.jar").exists()
    (tmp_path / "root/usr/lib/hadoop-yarn/lib").rmdir()
    done = run(tmp_path, pack(tmp_path / "a.tar.gz", FILES))
    assert (done.returncode, done.stderr) == (1, "isonomy: no folder for jars of YARN here\n")
