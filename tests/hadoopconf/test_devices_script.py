"""The NodeManager's helper that denies devices, on this machine's own cgroups, with a stand-in for a GPU's device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycontrol.hadoopconf.render import confs_dir

SCRIPT = confs_dir() / "nodemanager" / "isonomy-devices"
V1, V2 = Path("/sys/fs/cgroup/devices"), (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
ENTER = """import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))  # as container-executor moves a container's first process
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("opened")
    except OSError as e:
        print(e.strerror)
"""
ZERO, FULL = (1, 5), (1, 7)
"""/dev/zero and /dev/full, under other names: the stand-ins."""


def helper(*words: str, uid: int | None = None) -> subprocess.CompletedProcess[str]:
    env = {"SUDO_UID": str(os.getuid() if uid is None else uid)}
    command = [sys.executable, "-I", str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=30, check=False)


@pytest.fixture
def devices(tmp_path: Path) -> list[str]:
    """A container's own device and another's."""
    made = []
    for number, device in enumerate((ZERO, FULL)):
        made.append(str(tmp_path / f"nvidia{number}"))
        try:
            os.mknod(made[-1], 0o666 | 0o020000, os.makedev(*device))
            Path(made[-1]).open("rb").close()
        except OSError as e:
            pytest.skip(f"no device can be made here: {e}")
    return made


@pytest.fixture(params=["v1", "v2", "v1 mounted elsewhere"])
def cgroup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An empty cgroup of a container, and the file by which a process enters it."""
    mounts = [V1] if request.param == "v1" else [m for m in V2 if (m / "cgroup.controllers").exists()]
    if "elsewhere" in request.param:  # as on EMR
        mounts = [tmp_path / "devices"]
        mounts[0].mkdir()
        mount = ["mount", "-t", "cgroup", "-o", "devices", "cgroupv1-devices", str(mounts[0])]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("no cgroup can be mounted here")
    if not mounts or not mounts[0].is_dir():
        pytest.skip(f"no cgroup {request.param} here")
    folder = mounts[0] / f"container_1_{os.getpid():04d}_01_000001"
    try:
        folder.mkdir()
    except OSError as e:
        pytest.skip(f"no cgroup can be made here: {e}")
    yield folder, folder / ("cgroup.procs" if request.param == "v2" else "tasks")
    folder.rmdir()
    if "elsewhere" in request.param:
        subprocess.run(["umount", str(mounts[0])], check=True)


def test_a_process_in_the_container_cannot_open_the_device_of_another(
    cgroup: tuple[Path, Path], devices: list[str]
) -> None:
    folder, entry = cgroup

    def inside() -> list[str]:
        done = subprocess.run([sys.executable, "-c", ENTER, str(entry), *devices], capture_output=True, text=True)
        return done.stdout.splitlines()

    if helper("--check").returncode != 0:
        pytest.skip(f"this kernel enforces nothing: {helper('--check').stderr}")
    assert inside() == ["opened", "opened"]
    done = helper(str(folder), f"{FULL[0]}:{FULL[1]}", "195:3")
    assert done.returncode == 0, done.stderr
    assert inside() == ["opened", "Operation not permitted"]
    assert helper(str(folder), f"{ZERO[0]}:{ZERO[1]}").returncode == 0
    assert inside() == ["Operation not permitted"] * 2, "what is denied later is denied, too"
    for path in devices:
        Path(path).open("rb").close()  # outside nothing has changed


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("/tmp/container_1_0001_01_000001", "195:0"), "is no container's cgroup"),
        (("{}/../../../../../tmp/container_x", "195:0"), "is no container's cgroup"),
        (("/sys/fs/cgroup/system.slice", "195:0"), "is no container's cgroup"),
        (("{}", "a *:*"), "usage"),
        (("{}", "195:0;x"), "usage"),
        (("{}",), "usage"),
        ((), "usage"),
    ],
)
def test_the_helper_denies_devices_of_containers_and_does_nothing_else(
    cgroup: tuple[Path, Path], words: tuple[str, ...], why: str
) -> None:
    done = helper(*(word.format(cgroup[0]) for word in words))
    assert done.returncode == 1
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_the_cgroup_of_somebody_else_is_refused(cgroup: tuple[Path, Path]) -> None:
    done = helper(str(cgroup[0]), "195:0", uid=os.getuid() + 1)
    assert (done.returncode, "is not the caller's" in done.stderr) == (1, True)
