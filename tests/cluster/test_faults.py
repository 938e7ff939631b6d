"""Faults on real processes: running containers continue, every app finishes, the audit is clean."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.rig import BIN, Rig, options

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("faults"))
    yield made
    made.down()


def test_apps_survive_a_killed_control_plane_and_a_submission_waits_for_the_next_one(rig: Rig) -> None:
    rig.submit("cp", 25)
    rig.training("cp", 5)
    assert rig.control is not None
    rig.control.kill()
    rig.control.wait()
    words = [str(BIN / "submarine"), "job", "run", *options("late", 4)]
    with subprocess.Popen(words, env=rig.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as client:
        assert client.stderr is not None
        said = list(itertools.takewhile(lambda line: "; trying again" not in line, client.stderr))
        assert client.poll() is None, said
        rig.serve()
        assert client.wait(60) == 0, client.stderr.read()
    rig.succeeds("cp")
    rig.succeeds("late")
    assert [j["restarts"] for j in rig.jobs("cp") or [{"restarts": 0}]] == [0], "the running container continued"
    rig.audit()


def test_apps_survive_a_killed_worker(rig: Rig) -> None:
    rig.submit("worker", 20)
    rig.training("worker", 25)
    rig.kill9(rig.processes("submarine_patch.worker", rig.app("worker")["id"].removeprefix("application_")))
    rig.succeeds("worker")
    rig.audit()


def test_apps_survive_a_killed_am(rig: Rig) -> None:
    rig.submit("am", 40)
    rig.training("am", 5)
    rig.kill9(rig.processes("isonomy.am.AmShell", rig.app("am")["id"].removeprefix("application_"), "-Xmx"))
    rig.succeeds("am")
    rig.audit()


def test_apps_survive_a_killed_resourcemanager(rig: Rig) -> None:
    rig.submit("rm", 40)
    rig.training("rm", 5)
    rig.dev("kill", "resourcemanager")
    rig.dev("start", "resourcemanager")
    rig.succeeds("rm")
    rig.audit()


def test_apps_survive_a_killed_nodemanager(rig: Rig) -> None:
    rig.submit("nm", 40)
    rig.training("nm", 25)
    leases = rig.get("explain", app="nm")["leases"]
    host = leases[0]["gpu"].rpartition(":")[0]
    role = next(r for r, x in rig.cluster["roles"].items() if r.startswith("nodemanager") and x["host"] == host)
    rig.dev("kill", role)
    rig.succeeds("nm")
    rig.dev("start", role)
    rig.audit()
