"""A real cluster with Kerberos: who gets in and who does not, tokens that are renewed, daemons that die."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from pycontrol.negotiate import Negotiate
from tests.cluster.rig import BIN, Rig

pytestmark = [pytest.mark.secure, pytest.mark.timeout(1500)]

RENEW_MS = 40_000
"""Of HDFS' delegation tokens: a job of a minute and a half does not live through it without the ResourceManager."""
ME = getpass.getuser()


class SecureRig(Rig):
    """Asks with a ticket."""

    def __init__(self, folder: Path, policy: str = "themis", *options: str) -> None:
        self.tickets = folder / "kdc"
        super().__init__(folder, policy, *options)

    def _ask(self, path: str, **params: str) -> dict[str, Any]:
        os.environ["KRB5_CONFIG"] = str(self.tickets / "krb5.conf")
        login = Negotiate(f"{ME}@ISONOMY.DEV", str(self.tickets / "all.keytab"))
        try:
            reply = requests.get(
                f"{self.cluster['rm_web']}/ws/v1/cluster/{path}", params=params, timeout=10, auth=login
            )
            return dict(reply.json()) if reply.ok else {}
        except (requests.RequestException, ValueError):
            return {}

    def of(self, user: str) -> dict[str, str]:
        """A user's environment: its ticket."""
        return {**self.env, "KRB5CCNAME": str(self.tickets / f"{user}.ticket")}

    def isonomy(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """The command as a user."""
        command = [str(BIN / "isonomy"), *words]
        return subprocess.run(command, env=self.of(user), capture_output=True, text=True, timeout=60, check=False)

    def hdfs(self, user: str, query: str) -> requests.Response:
        """WebHDFS as a user."""
        login = Negotiate(f"{user}@ISONOMY.DEV", str(self.tickets / "all.keytab"))
        return requests.get(f"{self.cluster['webhdfs']}/webhdfs/v1{query}", timeout=20, auth=login)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRig]:
    folder = tmp_path_factory.mktemp("secure") / "dc"
    renewal = f"security.token_renew_ms={RENEW_MS}"
    made = SecureRig(folder, "themis", "--secure", "--set", renewal)
    yield made
    made.down()


def test_who_has_no_ticket_is_told_to_get_one(rig: SecureRig) -> None:
    refused = rig.isonomy("nobody", "status")
    assert refused.returncode == 1
    assert "run kinit" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert rig.isonomy("bob", "status").returncode == 0
    assert requests.get(f"{rig.cluster['rm_web']}/ws/v1/cluster/isonomy/status", timeout=10).status_code == 401


def test_a_job_by_ticket_outlives_its_tokens_renewal_and_the_daemons(rig: SecureRig) -> None:
    rig.submit("ticket", 90)
    rig.training("ticket", 3)
    app_id = rig.app("ticket")["id"]
    for words in (("pause",), ("kill", app_id)):
        refused = rig.isonomy("alice", *words)
        assert refused.returncode == 1, refused.stdout
        assert "alice" in refused.stderr
    log = rig.isonomy("alice", "logs", app_id)
    assert log.returncode != 0 or "step" not in log.stdout
    for role in ("rm", "nn"):
        rig.dev("kill", role)
        rig.dev("start", role)
    rig.wait(lambda: rig.get("status").get("ready"), 90, "the plugin is back")
    rig.succeeds("ticket")
    assert rig.app("ticket")["elapsedTime"] > 1.5 * RENEW_MS
    rig.audit()


def test_a_job_by_keytab_without_a_ticket_and_its_model_is_its_users(rig: SecureRig) -> None:
    env = {**rig.of("nobody"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    words = ["--keytab", str(rig.tickets / "all.keytab"), "--principal", "alice@ISONOMY.DEV"]
    rig.env, before = env, rig.env
    try:
        rig.submit("keytab", 4, *words)
    finally:
        rig.env = before
    assert rig.app("keytab")["user"] == "alice"
    rig.succeeds("keytab")
    explained = json.loads(rig.isonomy("alice", "explain", "keytab", "-o", "json").stdout)
    model = explained["app"]["model_path"]
    path = model.split("://", 1)[-1]
    path = path[path.index("/") :]
    assert rig.hdfs("alice", f"{path}?op=LISTSTATUS").status_code == 200
    assert rig.hdfs("bob", f"{path}?op=LISTSTATUS").status_code == 403
