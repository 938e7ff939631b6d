"""A real cluster with Kerberos: access and refusals, renewed tokens, killed daemons.

The short ones are a part of `make test`; all: `make secure-test`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest
import requests

from tests.cluster.rig import BIN, ME, Rig
from tests.cluster.test_failover import Pair

pytestmark = [pytest.mark.secure, pytest.mark.timeout(3600)]

RENEW_MS, MAX_MS = 40_000, 100_000
"""HDFS' delegation tokens: a job of two minutes lives through it only if they are renewed, and then replaced."""


class Kerberized(Rig):
    """Its users' commands and requests."""

    def of(self, user: str) -> dict[str, str]:
        """A user's environment: its ticket."""
        return {**self.env, "KRB5CCNAME": str(self.tickets / f"{user}.ticket")}

    def isonomy(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """The command as a user."""
        command = [str(BIN / "isonomy"), *words]
        return subprocess.run(command, env=self.of(user), capture_output=True, text=True, timeout=60, check=False)

    def submit_by_keytab(self, name: str, seconds: float) -> None:
        """Submits Alice's job as a user without a ticket."""
        env = {**self.of("nobody"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.env, before = env, self.env
        try:
            self.submit(name, seconds, "--keytab", str(self.tickets / "all.keytab"), "--principal", "alice@ISONOMY.DEV")
        finally:
            self.env = before

    def hdfs(self, user: str, query: str) -> requests.Response:
        """WebHDFS as a user."""
        url = f"{self.cluster['webhdfs']}/webhdfs/v1{query}"
        return requests.get(url, timeout=20, auth=self.login_of(user))


class SecurePair(Kerberized, Pair):
    """A pair of ResourceManagers with Kerberos, each with a control plane."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    folder = tmp_path_factory.mktemp("secure") / "dc"
    lives = f"security.token_renew_ms={RENEW_MS}", f"security.token_max_ms={MAX_MS}"
    made = Kerberized(folder, "themis", "--secure", "--set", lives[0], "--set", lives[1])
    yield made
    made.down()


@pytest.mark.cluster
def test_a_user_without_a_ticket_is_told_to_get_one(rig: Kerberized) -> None:
    refused = rig.isonomy("nobody", "status")
    assert refused.returncode == 1
    assert "run kinit" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert rig.isonomy("bob", "status").returncode == 0
    assert requests.get(f"{rig.cluster['rm_web']}/ws/v1/cluster/isonomy/status", timeout=10).status_code == 401


@pytest.mark.cluster
def test_a_job_by_keytab_without_a_ticket_and_its_model_is_its_users(rig: Kerberized) -> None:
    rig.submit_by_keytab("keytab", 4)
    app = rig.app("keytab")
    assert app["user"] == "alice"
    for words in (["pause"], ["kill", app["id"]]):
        refused = rig.isonomy("bob", *words)
        assert refused.returncode == 1, refused.stdout
        assert "bob" in refused.stderr
    rig.training("keytab", 1)
    log = rig.isonomy("bob", "logs", app["id"])
    assert log.returncode != 0 or "step" not in log.stdout
    rig.succeeds("keytab")
    explained = json.loads(rig.isonomy("alice", "explain", "keytab", "-o", "json").stdout)
    model = explained["app"]["model_path"]
    path = model.split("://", 1)[-1]
    path = path[path.index("/") :]
    assert rig.hdfs("alice", f"{path}?op=LISTSTATUS").status_code == 200
    assert rig.hdfs("bob", f"{path}?op=LISTSTATUS").status_code == 403
    rig.audit()


def test_a_job_outlives_its_tokens_the_resourcemanager_and_the_namenode(rig: Kerberized) -> None:
    submitted_s = time.time()
    rig.submit("ticket", 150)
    rig.training("ticket", 3)
    for role in ("rm", "nn"):
        rig.dev("kill", role)
        rig.dev("start", role)
    rig.wait(lambda: rig.get("status").get("ready"), 90, "the plugin is back")
    time.sleep(max(0.0, submitted_s + 1.1 * MAX_MS / 1000.0 - time.time()))  # no token of the submission is good now
    (job,) = rig.jobs("ticket")
    host = rig.get("explain", app="ticket")["leases"][0]["gpu"].rpartition(":")[0]
    assert rig.isonomy(ME, "drain", host).returncode == 0
    rig.wait(lambda: [j["restarts"] for j in rig.jobs("ticket")] == [job["restarts"] + 1], 120, "it is revoked")
    rig.training("ticket", job["step"])  # it continued from a checkpoint, and writes the next one
    assert rig.isonomy(ME, "drain", host, "--end").returncode == 0
    rig.wait(lambda: [j["checkpoints_failed"] for j in rig.jobs("ticket")] == [0], 150, "a checkpoint is whole")
    rig.succeeds("ticket")
    rig.audit()


def test_a_standby_continues_from_the_state_on_a_secure_hdfs(tmp_path_factory: pytest.TempPathFactory) -> None:
    pair = SecurePair(tmp_path_factory.mktemp("secure-pair") / "dc", "--secure")
    try:
        pair.submit("plain", 60)
        pair.training("plain", 3)
        arrived_s = pair.get("explain", app="plain")["app"]["arrived_s"]
        pair.taken_over(90)
        pair.goes_on("plain", 3)
        assert pair.get("explain", app="plain")["app"]["arrived_s"] == arrived_s, "its clock continues"
        pair.succeeds("plain")
        pair.audit()
    finally:
        pair.down()
