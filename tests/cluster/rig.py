"""A real cluster with its own control plane, for faults on real processes."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from requests.auth import AuthBase

import isonomy
from pycontrol.negotiate import Negotiate
from submarine_patch.cli.api import Handle

ME = getpass.getuser()
REPO = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SLOWEST = 4.0
PRESSURE = Path("/proc/pressure/cpu")
DIGITS = "python -m submarine_patch.examples.digits"
SETTINGS = ("isonomy.lease_s=20", "isonomy.f=0.3", "isonomy.grant_timeout_s=30", "isonomy.round_retry_s=3")


def slowness(pressure: Path = PRESSURE) -> float:
    """How many times longer everything takes now than on an idle machine.

    By the share of the last 10 s in which something waited for a core (PSI): a build that has just ended does not
    count, as it does in the load average of a minute. Where the kernel does not say, as slow as it may be.
    """
    try:
        waited = float(pressure.read_text().partition("avg10=")[2].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return SLOWEST
    return min(SLOWEST, 1 / max(1 / SLOWEST, 1 - waited))


def options(
    name: str, seconds: float, *more: str, queue: str = "research", steps: int = 50, command: str = DIGITS
) -> list[str]:
    """Of `submarine job run`: a job of two GPUs with about this training time; `more` makes it a group."""
    return [
        "--name",
        name,
        "--queue",
        queue,
        "--input_path",
        "/tmp",
        "--worker_resources",
        "memory=1G,vcores=1,gpu=2",
        "--num_workers",
        "1",
        "--max-iterations",
        str(steps),
        "--iteration-s",
        str(seconds * 2 / steps),
        "--worker_launch_cmd",
        command,
        *more,
    ]


def submit_script(command: str, name: str, script: Path, gpus: int, **more: Any) -> Handle:
    """Submits a script that knows nothing of Isonomy."""
    return isonomy.submit(
        command,
        name=name,
        queue="research",
        framework="command",
        memory="512M",
        gpus=gpus,
        files=[script],
        **more,
    )


class Rig:
    """Cluster, control plane, clients."""

    settings: tuple[str, ...] = SETTINGS
    repo, bin = REPO, BIN
    """The checkout whose dev-cluster, control plane and clients these are."""
    login: AuthBase | None = None
    """The credentials for web apps of a secure cluster."""

    def __init__(self, folder: Path, policy: str = "themis", *options: str) -> None:
        self.folder, self.tickets = folder, folder / "kdc"
        if "--secure" in options:
            os.environ["KRB5_CONFIG"] = str(self.tickets / "krb5.conf")
            self.login = self.login_of(ME)
        words = [str(self.repo / "dev-cluster/up"), "--dir", str(folder), "--fresh", *options]
        for setting in self.settings:
            words += ["--set", setting]
        subprocess.run(words, check=True, timeout=900)
        self.cluster = json.loads((folder / "cluster.json").read_text())
        self.env = {**os.environ, **self.cluster["env"]}
        self.control: subprocess.Popen[bytes] | None = None
        try:
            self.serve(policy)
        except BaseException:  # no other process would end the cluster
            self.down()
            raise

    def login_of(self, user: str) -> Negotiate:
        """The credentials of a user for a secure cluster's web apps."""
        return Negotiate(f"{user}@ISONOMY.DEV", str(self.tickets / "all.keytab"))

    def serve(self, policy: str = "themis") -> None:
        """Starts the control plane and waits until it is ready."""
        self.control = self.control_plane(self.cluster["isonomy_yaml"], policy)
        self.wait(lambda: self.get("status").get("ready"), 60, "the plugin says hello")

    def control_plane(self, config: str, policy: str = "themis") -> subprocess.Popen[bytes]:
        """A control plane whose ports are open."""
        with (self.folder / "log" / "control-plane.log").open("ab") as log:
            words = [str(self.bin / "isonomy"), "serve", "--config", config, "--policy", policy]
            started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
        assert started.stdout is not None
        assert started.stdout.readline().startswith(b"ready")
        return started

    def stop(self) -> None:
        """Ends the control plane; leases and journal stay."""
        if self.control is not None:
            self.control.terminate()
            self.control.wait(20)

    def down(self) -> None:
        """Stops everything."""
        self.stop()
        subprocess.run([str(self.repo / "dev-cluster/down"), "--dir", str(self.folder)], check=True, timeout=120)

    def dev(self, verb: str, role: str) -> None:
        """dev-cluster/kill or start of a role."""
        words = [str(self.repo / "dev-cluster" / verb), "--dir", str(self.folder), role]
        subprocess.run(words, check=True, timeout=300)

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """A REST resource; {} while it is not available."""
        return self._ask(f"isonomy/{path}", **params)

    def post(self, verb: str, **params: str) -> None:
        """A verb of the control plane, without a command's start; for a cluster without Kerberos."""
        url = f"{self.cluster['rm_web'].split(',')[0]}/ws/v1/cluster/isonomy/{verb}"
        reply = requests.post(url, params=params | {"user.name": "root"}, headers={"X-Requested-By": "x"}, timeout=10)
        assert reply.ok, reply.text

    def app(self, name: str) -> dict[str, Any]:
        """YARN's report on an app."""
        found = self._ask("apps").get("apps") or {}
        return next((a for a in found.get("app", []) if a["name"] == name), {})

    def info(self) -> dict[str, Any]:
        """The ResourceManager's report on itself."""
        return dict(self._ask("info")["clusterInfo"])

    def _ask(self, path: str, **params: str) -> dict[str, Any]:
        """Of a pair the first ResourceManager that answers; one that stands by names the active one."""
        for base in self.cluster["rm_web"].split(","):
            try:
                reply = requests.get(f"{base}/ws/v1/cluster/{path}", params=params, timeout=10, auth=self.login)
                return dict(reply.json()) if reply.ok else {}
            except (requests.RequestException, ValueError):
                continue
        return {}

    def wait(self, condition: Callable[[], Any], limit_s: float, what: str) -> Any:
        """Polls until the condition holds; the limit is an idle machine's, and only bounds what hangs."""
        begin_s = time.monotonic()
        while not (value := condition()):
            waited_s = time.monotonic() - begin_s
            assert waited_s < limit_s * slowness(), f"not in {waited_s:.0f} s: {what}\n{self.tail()}"
            time.sleep(0.3)
        return value

    def tail(self) -> str:
        """The end of the control plane's log and of each Agent's."""
        files = [self.folder / "log" / "control-plane.log", *self.folder.glob("data/*/log/*/*_000001/stderr")]
        return "\n".join(f"== {f}\n" + "\n".join(f.read_text(errors="replace").splitlines()[-15:]) for f in files)

    def submit(
        self, name: str, seconds: float, *more: str, queue: str = "research", steps: int = 50, command: str = DIGITS
    ) -> None:
        """Submits a job of two GPUs with about this training time; `more` makes it a group."""
        words = [
            str(self.bin / "submarine"),
            "job",
            "run",
            *options(name, seconds, *more, queue=queue, steps=steps, command=command),
        ]
        done = subprocess.run(words, env=self.env, check=False, timeout=300, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """The Agent's last report on its jobs."""
        return list(self.get("explain", app=name).get("jobs", []))

    def training(self, name: str, from_step: int = 1, limit_s: float = 90) -> None:
        """Waits until the app's job trains past a step."""
        self.wait(lambda: any(j["step"] >= from_step for j in self.jobs(name)), limit_s, f"{name} at step {from_step}")

    def succeeds(self, name: str) -> None:
        """Waits until the app has succeeded."""
        ended = ("FINISHED", "FAILED", "KILLED")
        self.wait(lambda: self.app(name).get("state") in ended, 180, f"{name} ends")
        app = self.app(name)
        assert app["finalStatus"] == "SUCCEEDED", f"{app['diagnostics']}\n{self.tail()}"

    def processes(self, *words: str) -> list[int]:
        """Processes of this cluster whose command line or environment has all these words."""
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            except OSError:
                continue
            if all(w.encode() in text for w in (str(self.folder), *words)):
                found.append(int(proc.name))
        return found

    def kill9(self, pids: list[int]) -> None:
        """kill -9."""
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def audited(self) -> dict[str, Any]:
        """The audit's output."""
        words = [str(self.bin / "isonomy"), "audit", "--cluster-dir", str(self.folder), "-o", "json"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=300)
        return dict(json.loads(done.stdout))

    def audit(self) -> None:
        """Checks that the journal and the nodes' evidence agree."""
        said = self.audited()
        assert said["violations"] == [], json.dumps(said)
