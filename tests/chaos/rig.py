"""The dev cluster with proxies between its parties and a supervisor for its control plane."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import resource
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.chaos.links import LOCALHOST, Link, between, hidden, hide, set_properties
from tests.chaos.plan import Plan
from tests.chaos.proxy import Proxy
from tests.chaos.watch import Watch
from tests.cluster.rig import BIN, REPO, Rig

TIMES_S = {"lease_s": 20.0, "grant_timeout_s": 30.0, "round_retry_s": 3.0}
"""Settings that are times, on a machine at rest."""
OTHERS = ("isonomy.f=0.3", "yarn.node_expiry_ms=30000", "yarn.am_max_attempts=100")
"""An app has more attempts than there are faults that cost it one."""
SECOND_S = 60.0
"""Within which a second control plane gives up."""
LOOK_S = 0.5
START_S = 1.5
"""Between a control plane's end and its next start, as a supervisor waits."""
FAKETIME = [Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"), Path("/usr/lib64/faketime/libfaketime.so.1")]
SPACE = """\
parameters:
  learning-rate: {type: float, min: 0.003, max: 0.3, log: true}
"""
CONTAINER = re.compile(rb"container_(?:e\d+_)?\d+_(\d+)_\d+_\d+")
PROGRAMS = {
    "am": ("isonomy.am.AmShell", "-Xmx"),
    "agent": ("-m submarine_patch.agent",),
    "worker": ("-m submarine_patch.worker",),
}


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(host: str, port: int) -> bool:
    """Whether a process accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def arguments_of(cmdline: bytes) -> str:
    """A process's command line as words."""
    return cmdline.replace(b"\0", b" ").decode(errors="replace")


class ChaosRig(Rig):
    """A cluster whose parties communicate through proxies; the control plane is restarted if it ends.

    `slower`: how many times as long everything may take, since the machine does other things too.
    """

    def __init__(self, folder: Path, plan: Plan, slower: float) -> None:
        self.links: dict[str, list[Link]] = {}
        self.slower = slower
        self.settings = tuple(f"isonomy.{k}={v * slower:g}" for k, v in TIMES_S.items()) + OTHERS
        self.skew_s: float | None = None
        self.full = False
        """Whether the journal's disk is full."""
        self.held_down = False
        self.starts = 0
        self._stopping = threading.Event()
        self._proxies: list[Proxy] = []
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._errands = queue.SimpleQueue[Callable[[], object] | None]()
        self._hand = threading.Thread(target=self._run_errands, name="errands", daemon=True)
        self.watch = Watch(self.processes, self.programs)
        options = ["--set", f"isonomy.cells={_cells_file(folder)}"] if plan.cells else []
        options += ["--secure"] if plan.kerberos else []
        super().__init__(folder, "themis", *options)
        (folder / "space.yaml").write_text(SPACE)

    # ---- the control plane and what stands before it

    def serve(self, policy: str = "themis") -> None:
        """Puts the proxies in between, then starts the control plane under its supervisor."""
        self._interpose()
        file = Path(self.cluster["isonomy_yaml"])
        config: dict[str, Any] = yaml.safe_load(file.read_text())
        behind = free_port()
        host, port = self.cluster["webhdfs"].removeprefix("http://").split(":")
        own = {
            "bridge": Proxy(("127.0.0.1", behind), config["bridge"]["port"]),
            "agents": Proxy(("127.0.0.1", config["agents"]["port"])),
            "webhdfs": Proxy((host, int(port))),
        }
        for name, proxy in own.items():
            proxy.start()
            self._proxies.append(proxy)
            self.links[name] = [Link(proxy)]
        config["bridge"]["port"] = behind
        config["agents"]["advertise"] = f"127.0.0.1:{own['agents'].port}"
        config["policy"] = policy
        file.write_text(yaml.safe_dump(config))
        address = f"http://127.0.0.1:{own['webhdfs'].port}"
        set_properties(Path(self.cluster["conf"]) / "submarine-site.xml", {"isonomy.webhdfs.address": address})
        self.start_plane()
        self._supervisor.start()
        self._hand.start()
        self.wait(lambda: self.get("status").get("ready"), 180 * self.slower, "the plugin says hello")
        self.watch.start()

    def _interpose(self) -> None:
        """Restarts the daemons on hidden addresses, with the proxies on their former ones."""
        hide(self.cluster)
        roles = self.cluster["roles"]
        for role in roles:
            if role != "datanode":  # one must run, else `up` configures them again
                self.dev("kill", role)
        links, rest = between(self.cluster)
        waiting = [p for each in links.values() for link in each for p in link.proxies] + rest
        of_datanode = {self.cluster["ports"][name] for name in ("datanode", "datanode_web", "datanode_ipc")}
        for proxy in waiting:
            if proxy.port not in of_datanode:
                proxy.start()
        subprocess.run([str(REPO / "dev-cluster/up"), "--dir", str(self.folder)], check=True, timeout=400)
        self.dev("kill", "datanode")
        for proxy in waiting:
            if proxy.port in of_datanode:
                proxy.start()
        self.dev("start", "datanode")
        self.links |= links
        self._proxies += waiting

    def start_plane(self) -> None:
        """Starts `isonomy serve`, with a full disk or a wrong clock if set."""
        env = dict(os.environ)
        library = next((f for f in FAKETIME if f.exists()), None)
        if self.skew_s is not None and library is not None:
            env |= {"LD_PRELOAD": str(library), "FAKETIME": f"{self.skew_s:+.0f}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        limit = self.journal_bytes if self.full else resource.RLIM_INFINITY
        self.starts += 1
        with (self.folder / "log" / "control-plane.log").open("ab") as log:
            self.control = subprocess.Popen(
                [str(BIN / "isonomy"), "serve", "--config", self.cluster["isonomy_yaml"]],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=env,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)),
            )

    @property
    def journal_bytes(self) -> int:
        """What the journal's largest file has now; at least one page, so that other files can be written."""
        files = (self.folder / "isonomy").glob("journal*")
        return max([4096, *(f.stat().st_size for f in files if f.is_file())])

    def fill_disk(self, full: bool) -> None:
        """The journal cannot grow any more, or can again."""
        self.full = full
        limit = self.journal_bytes if full else resource.RLIM_INFINITY
        if self.control is not None and self.control.poll() is None:
            resource.prlimit(self.control.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def _supervise(self) -> None:
        while not self._stopping.wait(LOOK_S):
            if self.control is not None and self.control.poll() is not None and not self.held_down:
                time.sleep(START_S)
                if not self._stopping.is_set():
                    self.start_plane()

    def second_plane(self) -> str:
        """Another one with the same configuration, while the first one lives: it must end with an error; else what it
        did."""
        first = self.control
        words = [str(BIN / "isonomy"), "serve", "--config", self.cluster["isonomy_yaml"]]
        second = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end_s = time.monotonic() + SECOND_S * self.slower
        while second.poll() is None and time.monotonic() < end_s:
            if first is None or first.poll() is not None:  # no other control plane was running
                second.kill()
                second.wait()
                return ""
            time.sleep(0.1)
        if second.poll() is None:
            second.kill()
            second.wait()
            return f"a second control plane did not end within {SECOND_S * self.slower:.0f} s beside the first one"
        return "" if second.returncode else "a second control plane ended well"

    # ---- errands: slow tasks, one at a time, while faults come and go

    def errand(self, do: Callable[[], object]) -> None:
        """Runs a task after the earlier ones, in the background."""
        self._errands.put(do)

    def revive(self, role: str) -> None:
        """Restarts a daemon that is down."""
        if not self.of_role(role):
            with contextlib.suppress(subprocess.SubprocessError):
                self.dev("start", role)

    def _run_errands(self) -> None:
        while (do := self._errands.get()) is not None:
            do()

    def errands_done(self) -> None:
        """Waits for all of them; there are no more afterwards."""
        self._errands.put(None)
        self._hand.join()

    def stop(self) -> None:
        """Ends supervisor, control plane and proxies."""
        self.watch.stop()
        self._stopping.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()
        super().stop()
        for proxy in self._proxies:
            proxy.stop()
        self._proxies.clear()

    # ---- processes

    def of_role(self, role: str) -> list[int]:
        """The daemon's process."""
        file = self.folder / "run" / f"{role}.pid"
        pid = int(file.read_text().split()[0]) if file.exists() else 0
        return [pid] if pid and Path(f"/proc/{pid}").exists() else []

    def of_program(self, program: str) -> list[list[int]]:
        """Processes of AMs, Agents or workers, those of one container together, in the order of their containers."""
        found: dict[bytes, list[int]] = {}
        for pid in self.processes():
            try:
                words = arguments_of(Path(f"/proc/{pid}/cmdline").read_bytes())
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if "bash" in words.split(" ")[0] or not all(w in words for w in PROGRAMS[program]):
                continue
            name = re.search(rb"CONTAINER_ID=(\w+)", environment) or CONTAINER.search(words.encode())
            if name:
                found.setdefault(name[0], []).append(pid)
        return [found[k] for k in sorted(found)]

    def programs(self) -> dict[str, list[int]]:
        """The processes of each program whose memory is checked."""
        found = {name: [pid for pids in self.of_program(name) for pid in pids] for name in PROGRAMS}
        daemons = [role for role in self.cluster["roles"] if role.startswith(("resourcemanager", "nodemanager"))]
        for role in daemons:
            found.setdefault(role.partition("-")[0], []).extend(self.of_role(role))
        return found | {"control plane": self.processes("isonomy\0serve")}

    def left(self) -> list[str]:
        """The cluster's processes, listening ports and open files after its end."""
        lines = []
        for pid in self.processes():
            try:
                lines.append(f"process {pid} {arguments_of(Path(f'/proc/{pid}/cmdline').read_bytes())[:150]}")
            except OSError:
                continue
        lines += [f"{file} of a journal that was not closed" for file in (self.folder / "isonomy").glob("*-wal")]
        known = {LOCALHOST, *(about["host"] for about in self.cluster["roles"].values())}
        for host in sorted(known | {hidden(h) for h in known}):
            ports = sorted(set(self.cluster["ports"].values()))
            lines += [f"somebody listens on {host}:{port}" for port in ports if listens(host, port)]
        return lines

    def half_written(self) -> list[str]:
        """Files and folders on HDFS that somebody began and did not finish: their names begin with `_`."""
        found, folders = list[str](), ["/user", "/tmp"]
        while folders:
            folder = folders.pop()
            for name, kind in self._listed(folder):
                path = f"{folder}/{name}"
                if name.startswith("_"):
                    found.append(path)
                elif kind == "DIRECTORY":
                    folders.append(path)
        return sorted(found)

    def _listed(self, folder: str) -> list[tuple[str, str]]:
        words = {"op": "LISTSTATUS", "user.name": self.cluster["user"]}
        url = f"{self.cluster['webhdfs']}/webhdfs/v1{folder}"
        reply = requests.get(url, params=words, timeout=30, auth=self.login)
        return [(f["pathSuffix"], f["type"]) for f in reply.json()["FileStatuses"]["FileStatus"]]

    # ---- apps

    def facts(self, kind: str) -> int:
        """How many of a kind the journal has, once the control plane has ended."""
        journal = f"file:{self.folder / 'isonomy' / 'journal.sqlite'}?mode=ro"
        with contextlib.closing(sqlite3.connect(journal, uri=True)) as opened:
            return int(opened.execute("SELECT count(*) FROM facts WHERE kind = ?", (kind,)).fetchone()[0])

    def metrics(self) -> str:
        """The control plane's metrics, as Prometheus reads them; empty while unavailable."""
        try:
            url = f"{self.cluster['rm_web']}/ws/v1/cluster/isonomy/metrics"
            reply = requests.get(url, timeout=10, auth=self.login)
        except requests.RequestException:
            return ""
        return reply.text if reply.ok else ""

    def yarn_apps(self) -> list[dict[str, Any]]:
        """YARN's report on all apps; [] while it gives none."""
        return list((self._ask("apps").get("apps") or {}).get("app", []))

    def settle(self, condition: Callable[[], Any], limit_s: float) -> bool:
        """Whether a condition holds within a time."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            time.sleep(1.0)
        return True


def _cells_file(folder: Path) -> Path:
    """Each of the two queues owns a machine of four and one of two GPUs."""
    topology = yaml.safe_load((REPO / "dev-cluster/topology.yaml").read_text())
    machines = [m for rack in topology["racks"] for m in rack["machines"]]
    big, small = ([m["host"] for m in machines if m["gpus"] == n] for n in (4, 2))
    node = {"child": "gpu", "node_level": True}
    cells = {
        "cell_types": {"big": node | {"count": 4}, "small": node | {"count": 2}},
        "physical_cells": [{"type": t, "hosts": [h]} for t, hs in (("big", big), ("small", small)) for h in hs],
        "virtual_clusters": {q: {"big": 1, "small": 1} for q in ("root.research", "root.prod")},
    }
    file = folder.parent / "cells.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(cells))
    return file
