"""LinuxContainerExecutor with a real setuid binary, which is in no package registry: where an operator has it.

ISONOMY_CONTAINER_EXECUTOR names the binary; its configuration allows `alice`, an account of this machine, and this user
is of its group.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.test_secure import Kerberized

BINARY = Path(os.environ.get("ISONOMY_CONTAINER_EXECUTOR") or "/none")


def why_not() -> str:
    """What is missing here."""
    if not BINARY.is_file():
        return "ISONOMY_CONTAINER_EXECUTOR names no container-executor"
    found = BINARY.stat()
    if found.st_uid != 0 or not found.st_mode & stat.S_ISUID:
        return f"{BINARY} is not root's setuid binary"
    try:
        pwd.getpwnam("alice")
    except KeyError:
        return "there is no account alice"
    return ""


pytestmark = [pytest.mark.secure, pytest.mark.timeout(900), pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    folder = tmp_path_factory.mktemp("lce") / "dc"
    for parent in (folder, *folder.parents):  # containers run as alice, who must reach her files
        if parent.exists() and parent.owner() == pwd.getpwuid(os.getuid()).pw_name:
            parent.chmod(parent.stat().st_mode | 0o011)
    settings = {"executor": "linux", "linux_path": BINARY, "linux_group": BINARY.group()}
    words = [word for key, value in settings.items() for word in ("--set", f"nodemanager.{key}={value}")]
    made = Kerberized(folder, "themis", "--secure", *words)
    yield made
    made.down()


def test_a_users_containers_run_as_the_user_and_see_their_gpus(rig: Kerberized) -> None:
    rig.submit_by_keytab("lce", 20)
    rig.training("lce", 3)
    number = rig.app("lce")["id"].removeprefix("application_")
    workers = rig.processes("submarine_patch.worker", number)
    assert workers
    assert {Path(f"/proc/{pid}").owner() for pid in workers} == {"alice"}
    environ = Path(f"/proc/{workers[0]}/environ").read_bytes().split(b"\0")
    visible = next(e for e in environ if e.startswith(b"CUDA_VISIBLE_DEVICES="))
    assert len(visible.partition(b"=")[2].split(b",")) == 2
    rig.succeeds("lce")
    rig.audit()
