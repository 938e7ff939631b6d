"""The main job: apps share the GPUs of a real YARN by Themis auctions, then others by the default policy.

Exit status 0 only if every app succeeded, the audit is clean, the winner's checkpoint lies on HDFS, and
everything happened that the demo is to show.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import busy
import click
import page
import requests
from foreseen import Advice, Foreseen
from hdfs import InsecureClient

from pycontrol.audit.history import History
from pycontrol.cli.records import facts_of
from pycontrol.config import load_topology_spec
from pycontrol.lab.runreport import spread
from pycontrol.negotiate import session
from pycontrol.runtime.spans import LeaseInterval
from pycontrol.words import count

REPO = Path(__file__).resolve().parents[2]
DEMO = REPO / "dev-cluster" / "demo"
BIN = Path(sys.executable).parent
MARK = "ISONOMY_DEV_CLUSTER_DAEMON"
"""As in devcluster/processes.py: what dev-cluster/down ends."""
SETTINGS = ("isonomy.f=0.3", "isonomy.policy_options={loss: 0}", "yarn.node_expiry_ms=30000")
"""f = 0.3: of two or three apps all bid, of four the worst three; what they pay goes to the fourth. loss = 0: a restart
costs more than a lease that is so short, so that with the default no running gang would give way."""
TIMES_S = {
    "lease_s": 25.0,
    "grant_timeout_s": 30.0,
    "round_retry_s": 4.0,
    "rho_deadline_s": 0.5,
    "bid_deadline_s": 2.0,
    "solve_deadline_s": 2.0,
}
"""Settings that are times, on a machine at rest."""
DEADLINE_S = 600.0
ENDED = ("FINISHED", "FAILED", "KILLED")
SAVED = re.compile(r"Saved checkpoint for (\d+) into (\S+) \(([\d.]+) sec\)")
RESTORED = re.compile(r"Restored checkpoint for [1-9]\d* from (\S+)")
DIGITS = "python -m submarine_patch.examples.digits"
KERAS_DIGITS = "python -m submarine_patch.examples.digits_keras"
HOSTILE = "'shell<img src=x onerror=alert(1)>'"
"""The name of the app that is no app of ours; quoted, because distributed shell hands it to a shell."""
KNOWS_NOTHING = "echo GPU $CUDA_VISIBLE_DEVICES; sleep 40"
"""Its command: it says which GPU it sees and works for a while."""
PROMISED = {
    "rounds_with_two_bidders": "an auction with two bidders",
    "standin_awards": "GPUs that the stand-in got",
    "renewed_gpus": "a renewal",
    "revoked_gpus": "a revocation",
}
"""What a run must have shown, by its key in `seen` of the report. A payment is drawn by lot, as gangs are whole,
and a run may show none; so may one whose stand-in is never among those with the worst rho, who bid."""

DEFAULT = "isonomy"
"""The policy of the second part: the one that serves where isonomy.yaml names none."""


@dataclass
class App:
    """One submission: `after_s` seconds from the start, or once `after` holds every GPU that is up."""

    name: str
    after_s: float
    command: list[str]
    after: str = ""
    process: subprocess.Popen[bytes] | None = None
    model: str | None = None
    log: Path | None = None
    framework: str = ""
    """Of the training script; empty for what `submarine` did not submit."""


def submarine(name: str, queue: str, gpus: int, more: list[str], command: str = DIGITS) -> list[str]:
    """A `submarine job run`, of the digits example where nothing else is said."""
    worker = f"--num_workers 1 --worker_resources memory=1G,vcores=1,gpu={gpus}".split()
    paths = ["--input_path", "/tmp", "--saved_model_path", f"/demo/{name}/model"]
    run = [str(BIN / "submarine"), "job", "run", "--name", name, "--queue", queue]
    return [*run, *worker, "--worker_launch_cmd", command, *paths, *more]


def search(space: str, options: str) -> list[str]:
    """The options of an app that searches this space in rungs of which every second job continues."""
    return ["--search-space", str(DEMO / space), "--eta", "2", *options.split()]


def paced(words: list[str], slower: float) -> list[str]:
    """The options of a job whose steps take so many times as long."""
    k = words.index("--iteration-s") + 1
    return [*words[:k], f"{float(words[k]) * slower:g}", *words[k + 1 :]]


def apps(cluster: Path, slower: float) -> list[App]:
    """Two Hyperband apps, a plain job, and one that knows nothing of Isonomy.

    The first two want 24 of the 12 GPUs and have work for several leases: each common end of the leases is contested.
    """
    rungs = "--app-scheduler hyperband --max-iterations 64 --min-iterations 16 --budget 130"
    vision = search("vision.yaml", f"{rungs} --gpus-per-job 4 --seed 1 --iteration-s 3.0 --slowdown 1.0,1.3,1.8")
    speech = search("speech.yaml", f"{rungs} --gpus-per-job 2 --seed 2 --iteration-s 1.9 --slowdown 1.0,1.05,1.1")
    plain = ["--max-iterations", "95", "--iteration-s", "1.4"]
    foreign = [str(REPO / "dev-cluster/hadoop"), "--dir", str(cluster), "distributedshell"]
    foreign += ["-shell_command", KNOWS_NOTHING, "-queue", "prod", "-appname", HOSTILE, "-master_memory", "256"]
    foreign += ["-num_containers", "1", "-container_resources", "memory-mb=256,vcores=1,yarn.io/gpu=1"]
    return [
        job("vision", 0, submarine("vision", "research", 2, paced(vision, slower))),
        job("ranker", 4 * slower, submarine("ranker", "prod", 2, paced(plain, slower))),
        job("speech", 7 * slower, submarine("speech", "prod", 2, paced(speech, slower))),
        App(HOSTILE, 26 * slower, foreign),
    ]


def by_size(slower: float) -> list[App]:
    """For the default policy: an app that takes all 12 GPUs, and two small ones that come when it has them and go
    before it: Keras' `fit`, and a script that knows nothing of Isonomy but keeps a folder of its own.

    Split evenly, the large one would end about half a minute after the small ones.
    """
    rung = "--app-scheduler successive_halving --jobs 6 --max-iterations 50 --min-iterations 50"
    large = search("speech.yaml", f"{rung} --gpus-per-job 2 --seed 3 --iteration-s 2.0")
    small = ["--framework", "keras", "--max-iterations", "20", "--iteration-s", "1.0"]
    other = ["--framework", "command", "--localization", f"{DEMO / 'plain_script.py'}:."]
    other += ["--keep-folder", "ckpt", "--metric", "f1"]
    return [
        job("large", 0, submarine("large", "research", 2, paced(large, slower))),
        job("small", 0, submarine("small", "prod", 2, paced(small, slower), KERAS_DIGITS), after="large"),
        job("other", 0, submarine("other", "prod", 1, other, "python plain_script.py"), after="large"),
    ]


def job(name: str, after_s: float, command: list[str], after: str = "") -> App:
    """A submission by `submarine`, whose model is to lie on HDFS."""
    framework = command[command.index("--framework") + 1] if "--framework" in command else "tensorflow"
    return App(name, after_s, command, after, model=f"/demo/{name}/model", framework=framework)


@dataclass
class Demo:
    """The cluster, the control plane and the apps of one run."""

    folder: Path
    out: Path
    settings: tuple[str, ...]
    planned: Callable[[Path, float], list[App]] = apps
    topology: Path | None = None
    """The machines, where they are not those of dev-cluster/topology.yaml."""
    started_s: float = field(default_factory=time.monotonic)
    control: subprocess.Popen[bytes] | None = None
    apps: list[App] = field(default_factory=list)
    rounds_shown: set[str] = field(default_factory=set)
    cluster: dict[str, Any] = field(default_factory=dict)
    slower: float = 1.0
    """How many times as long everything may take: the machine does other things too."""
    foreseen: Foreseen = field(default_factory=Foreseen)
    advice: Advice = field(default_factory=lambda: Advice("large"))
    refused: list[str] = field(default_factory=list)
    """The operator's commands that failed."""
    visit: subprocess.Popen[bytes] | None = None
    """The page in a browser, once the app with the hostile name is there."""

    def say(self, text: str) -> None:
        """A line of progress with the time since the start."""
        click.echo(f"[{time.monotonic() - self.started_s:5.0f} s] {text}")

    @property
    def env(self) -> dict[str, str]:
        """Environment of all clients."""
        return {**os.environ, **self.cluster["env"], "ISONOMY_RM": self.cluster["rm_web"]}

    @property
    def page(self) -> str:
        """The page's address, by which YARN knows who looks."""
        return f"{self.cluster['rm_web']}/ws/v1/cluster/isonomy/ui?user.name={getpass.getuser()}"

    def up(self) -> None:
        """A fresh cluster and its control plane."""
        words = [str(REPO / "dev-cluster/up"), "--dir", str(self.folder), "--fresh"]
        for setting in self.settings:
            words += ["--set", setting]
        words += ["--topology", str(self.topology)] if self.topology else []
        if subprocess.run(words).returncode:
            raise click.ClickException("the cluster did not come up; its log is above")
        self.cluster = json.loads((self.folder / "cluster.json").read_text())

    def serve(self, policy: str | None = None) -> None:
        """The control plane, in place of the one that ran; `policy` instead of the file's."""
        self.stop()
        serve = [str(BIN / "isonomy"), "serve", "--config", self.cluster["isonomy_yaml"]]
        serve += ["--policy", policy] if policy else []
        env = {**os.environ, MARK: str(self.folder)}
        with (self.folder / "log" / "control-plane.log").open("ab") as log:
            self.control = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=env)
        assert self.control.stdout is not None
        line = self.control.stdout.readline().decode().strip()
        if not line.startswith("ready"):
            raise click.ClickException(f"the control plane did not start; see {log.name}")
        self.say(f"control plane {line}")
        self.wait(lambda: self.get("status").get("ready"), 60 * self.slower, "the plugin has not said hello")
        self.say(f"its page: {self.page}")

    @property
    def pictures(self) -> Path:
        """The folder of the page's pictures."""
        return self.out.parent / "page"

    def seen_in_browser(self) -> list[str]:
        """What was wrong with the page in a browser."""
        if self.visit is None:
            return ["the app that is no app of ours on the page"]
        try:
            status = self.visit.wait(600)
        except subprocess.TimeoutExpired:
            return ["the page in a browser within ten minutes"]
        said = (self.folder / "log" / "page.log").read_text(errors="replace").strip()
        if status == page.NO_BROWSER:
            self.say(f"the page was not opened: {said}")
            return []
        self.say(f"the page in Chromium: {self.pictures}")
        return [f"a page without faults: {said}"] if status else []

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """A resource of the control plane, {} while it is not there; raises ClickException for a query it refuses."""
        try:
            reply = session().get(f"{self.cluster['rm_web']}/ws/v1/cluster/isonomy/{path}", params=params, timeout=10)
            if reply.status_code == requests.codes.bad_request:
                raise click.ClickException(f"{path}: {reply.text}")
            return dict(reply.json()) if reply.ok else {}
        except (requests.RequestException, ValueError):
            return {}

    def yarn_apps(self) -> dict[str, dict[str, Any]]:
        """YARN's own word on each app, by name."""
        try:
            found = session().get(f"{self.cluster['rm_web']}/ws/v1/cluster/apps", timeout=10).json()["apps"] or {}
        except (requests.RequestException, ValueError):
            return {}
        return {a["name"]: a for a in found.get("app", [])}

    def wait(self, condition: Callable[[], Any], limit_s: float, problem: str) -> None:
        """Polls a condition that has no event to wait for."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s:
                raise click.ClickException(problem)
            time.sleep(0.3)

    def run(self) -> bool:
        """Submits what is planned, watches, and says whether every app succeeded."""
        return self.watch(self.planned(self.folder, self.slower))

    def watch(self, apps: list[App]) -> bool:
        """The same for these apps, after others."""
        self.apps += apps
        begin_s, shown = time.monotonic(), ""
        while time.monotonic() - begin_s < DEADLINE_S * self.slower:
            for app in apps:
                if app.process is None and time.monotonic() - begin_s >= app.after_s and self.holds_all(app.after):
                    self.submit(app)
            self.show_rounds()
            shown = self.show_queue(shown)
            states = self.yarn_apps()
            ended = {name for name, state in states.items() if state["state"] in ENDED}
            if all((a.name if a.process else a.after) in ended for a in apps):
                break
            self.need_submitted(states)
            time.sleep(1.0)
        final = {a.name: self.yarn_apps().get(a.name, {}) for a in apps}
        for name, state in final.items():
            if state.get("finalStatus") != "SUCCEEDED":
                why = str(state.get("diagnostics", ""))[:500]
                self.say(f"{name}: {state.get('state')} {state.get('finalStatus')}: {why}")
        return all(s.get("finalStatus") == "SUCCEEDED" for s in final.values())

    def need_submitted(self, states: Container[str]) -> None:
        """Raises ClickException where a client is done without success and YARN, which has these, has not its app."""
        for app in self.apps:
            if app.process and app.process.poll() and app.name not in states:
                raise click.ClickException(f"{app.name} was not submitted; see {app.log}")

    def holds_all(self, name: str) -> bool:
        """Whether the app of this name holds every GPU that is up; also without a name."""
        if not name:
            return True
        gpus = sum(node["gpus"] for node in self.get("status").get("nodes", ()))
        return gpus > 0 and any(a["name"] == name and held(a) == gpus for a in self.get("queue").get("apps", ()))

    def submit(self, app: App) -> None:
        """Starts the client; it ends once YARN has the app."""
        app.log = self.folder / "log" / f"submit-{re.sub(r'[^-.0-9A-Za-z]+', '-', app.name).strip('-')}.log"
        with app.log.open("wb") as log:
            app.process = subprocess.Popen(app.command, stdout=log, stderr=log, env=self.env, start_new_session=True)
        kind = f"submarine job run, {app.framework}" if app.framework else "distributed shell"
        self.say(f"submitted {app.name}: {kind}")

    def show_rounds(self) -> None:
        """Each new round in a line."""
        seen = self.rounds_shown
        for r in reversed(self.get("rounds", n="20").get("rounds", [])):
            if r["round_id"] in seen or not (r.get("granted") or r.get("revoked") or r.get("renewed")):
                continue
            seen.add(r["round_id"])
            names = {a["id"]: n for n, a in self.yarn_apps().items()}
            bids = ", ".join(f"{names.get(b['app_id'], b['app_id'])} {won(b)}" for b in r.get("bids", []))
            self.say(
                f"round {r['round_id']}: {count(sum(r['offered'].values()), 'GPU')} offered; {bids or r['policy']}; "
                f"{len(r['renewed'])} renewed, {len(r['granted'])} granted, {len(r['revoked'])} revoked"
            )

    def show_queue(self, before: str) -> str:
        """The apps in the system, when something changed."""
        queue = self.get("queue")
        self.foreseen.look(queue)
        for line in self.advice.look(queue, self.why_not):
            self.say(f"  {line}")
        rows = queue.get("apps", [])
        if self.visit is None and any(a["name"] == HOSTILE for a in rows):
            words = [sys.executable, str(DEMO / "page.py"), self.page, str(self.pictures), HOSTILE]
            with (self.folder / "log" / "page.log").open("wb") as log:
                self.visit = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        text = "; ".join(f"{a['name']} {held(a)} GPUs, {a['reason']}" for a in rows)
        if text != before and text:
            self.say(f"  {text}")
        return text

    def why_not(self, app_id: str) -> dict[str, Any]:
        """What would give an app GPUs now, as its owner is told."""
        return self.get("why-not", app=app_id, **{"user.name": getpass.getuser()})

    def report(self) -> tuple[dict[str, Any], bool]:
        """Writes report.json, prints the table; whether audit and model are as they should be."""
        journal = self.folder / "isonomy" / "journal.sqlite"
        words = [str(BIN / "isonomy"), "report", "--cluster-dir", str(self.folder), "--out", str(self.out)]
        subprocess.run(words, env=self.env, check=False)
        if not self.out.exists():
            raise click.ClickException(f"no report could be made from {journal}")
        data = {**json.loads(self.out.read_text()), "checkpoint_s": spread(self.checkpoints_s())}
        states = self.yarn_apps()
        ended_s = {a["id"]: a["finishedTime"] / 1000 for a in states.values() if a["finishedTime"]}
        data["estimates"] = self.foreseen.report({a["id"]: name for name, a in states.items()}, ended_s)
        for what, found in data["estimates"].items():
            self.say(f"estimates of {what}: {found['in_range']} of {found['n']} in the range of 80 %")
        data["why_not"] = self.advice.report(self.leases())
        for row in data["why_not"]:
            self.say(f"it came true: {row['sentence']}" if row["came_true"] else f"not so: {row['sentence']}")
        frameworks = {a.name: a.framework for a in self.apps}
        for row in data["apps"]:
            row["framework"] = frameworks.get(row["name"], "")
        self.out.write_text(json.dumps(data, indent=2) + "\n")
        good = bool(data["audit"]["complete"])
        for violation in data["audit"]["violations"]:
            good = False
            self.say(f"AUDIT: {violation}")
        hdfs = InsecureClient(self.cluster["webhdfs"], timeout=10, session=session())
        for app in self.apps:
            if app.model is not None:
                there = hdfs.list(app.model) if hdfs.status(app.model, strict=False) else []
                names = [n for n in there if not n.startswith("results-")]
                good = good and bool(names)
                self.say(f"model of {app.name} on HDFS: {app.model}/{names[-1] if names else 'MISSING'}")
        return data, good

    def logs(self, app_id: str = "*") -> list[str]:
        """What the workers logged."""
        logs = (self.folder / "data").glob(f"nodemanager-*/log/{app_id}/*/stderr")
        return [log.read_text(errors="replace") for log in logs]

    def checkpoints_s(self) -> list[float]:
        """What each checkpoint took by its worker's log, until it lay whole on HDFS."""
        return [float(took_s) for log in self.logs() for _, _, took_s in SAVED.findall(log)]

    def resumed(self, app_id: str) -> bool:
        """Whether a job of the app went on from what a worker of it had saved when it was told to stop."""
        logs = self.logs(app_id)
        last = [(log, *saved) for log in logs for saved in SAVED.findall(log)[-1:]]
        left = {path for log, step, path, _ in last if f"Stopped on request at step {step}" in log}
        return any(path in left for log in logs for path in RESTORED.findall(log))

    def isonomy(self, *words: str) -> None:
        """Runs a command of the operator's, its output as it is."""
        if status := subprocess.run([str(BIN / "isonomy"), *words], env=self.env, check=False).returncode:
            self.refused.append(f"the answer of isonomy {' '.join(words)} (status {status})")

    def serve_by_size(self) -> bool:
        """The second part: the default policy serves; whether all went well, and went as that policy has it.

        The machine may be busier by now: a large app that is done before the small ones connect would rightly be first.
        """
        self.slower = max(self.slower, busy.factor())
        before = {r["round_id"] for r in self.get("rounds", n="200").get("rounds", [])}
        self.serve()
        good = self.watch(by_size(self.slower))
        for name in ("small", "other", "large"):
            self.isonomy("explain", name)
        receipts = self.get("rounds", n="200").get("rounds", [])
        for wrong in out_of_order([r for r in receipts if r["round_id"] not in before], self.yarn_apps()):
            good = False
            self.say(f"MISSING: {wrong}")
        return good

    def leases(self) -> list[LeaseInterval]:
        """All leases of the journal."""
        return History.of(facts_of(self.folder / "isonomy" / "journal.sqlite")).leases()

    def host_types(self) -> dict[str, str]:
        """The GPU type of each host."""
        assert self.topology is not None
        return {m.host: m.type for m in load_topology_spec(self.topology).machines}

    def mean_gpus(self, name: str, begin_s: float, end_s: float) -> dict[str, float]:
        """GPUs of each type that an app held between two Unix times, on average."""
        app_id, type_of = self.yarn_apps()[name]["id"], self.host_types()
        total = dict.fromkeys(type_of.values(), 0.0)
        for span in self.leases():
            if span.app_id == app_id:
                until_s = min(end_s, span.ended_s if span.ended_s is not None else end_s)
                total[type_of[span.gpu.host]] += max(0.0, until_s - max(begin_s, span.granted_s))
        return {t: gpu_s / (end_s - begin_s) for t, gpu_s in total.items()}

    def stop(self) -> None:
        """Ends the control plane; its journal stays."""
        if self.control is not None:
            self.control.terminate()
            try:
                self.control.wait(15)
            except subprocess.TimeoutExpired:
                self.control.kill()

    @contextmanager
    def running(self, policy: str | None = None, keep: bool = False) -> Iterator[None]:
        """Cluster and control plane, up; at the end, however it comes, they are down, or left up if `keep`."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, lambda n, _: sys.exit(128 + n))
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.unlink(missing_ok=True)
        try:
            if self.slower > 1.0:
                self.say(f"this machine is busy: leases, steps and deadlines are {self.slower:.1f} times as long")
            self.up()
            self.serve(policy)
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            if keep and self.cluster:
                self.kept()
            else:
                with suppress(OSError):  # of a terminal that is gone
                    self.say("the cluster is taken down; no signal interrupts that")
                self.down()

    def kept(self) -> None:
        """Says what runs on, and how it ends."""
        self.say(f"the cluster is left up. Its page: {self.page}")
        self.say(f"for the command line: export ISONOMY_RM={self.cluster['rm_web']}")
        self.say(f"to end all of it: {REPO / 'dev-cluster/down'} --dir {self.folder}")

    def down(self) -> None:
        """Leaves nothing running."""
        self.stop()
        for process in (self.visit, *(app.process for app in self.apps)):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        subprocess.run([str(REPO / "dev-cluster/down"), "--dir", str(self.folder)], check=False)


def missed(report: dict[str, Any], resumed: Callable[[str], bool]) -> list[str]:
    """What a run is to show and this one did not; `resumed` says of an app's id whether a gang told to stop went on."""
    absent = [what for key, what in PROMISED.items() if not report["seen"][key]]
    absent += [] if any(row["came_true"] for row in report["why_not"]) else ["an answer to why-not that came true"]
    again = any(a["revocations"] and a["final_state"] == "SUCCEEDED" and resumed(a["id"]) for a in report["apps"])
    return absent if again else [*absent, "a revoked gang that resumed"]


def out_of_order(receipts: list[dict[str, Any]], apps: dict[str, dict[str, Any]]) -> list[str]:
    """What the default policy is to show and its rounds do not, by their receipts and YARN's word on the apps.

    Apps that got GPUs in a round in which the large one lost some come first by the policy, and must have ended first.
    """
    names = [a.name for a in by_size(1.0)]
    if never := [n for n in names if n not in apps]:
        return [f"{n}, which was never submitted" for n in never]
    why = {a: text for r in receipts for a, text in r.get("why", {}).items()}
    silent = [n for n in names if not why.get(apps[n]["id"], "").startswith("equal sharing would")]
    large = apps["large"]
    lost = [r for r in receipts if any(x["app_id"] == large["id"] for x in r.get("revoked", ()))]
    got = {x["app_id"] for r in lost for x in r.get("granted", ())}
    first = [apps[n] for n in ("small", "other") if apps[n]["id"] in got]
    late = any(x["finishedTime"] > large["finishedTime"] for x in first)
    found = {
        f"rounds of other policies than {DEFAULT}": {r["policy"] for r in receipts} != {DEFAULT},
        f"receipts that say why for {', '.join(silent)}": bool(silent),
        "GPUs that the large app gave to a smaller one that came later": not first,
        "apps that come first and are done earlier": late,
    }
    return [what for what, wrong in found.items() if wrong]


def won(bid: dict[str, Any]) -> str:
    """What a bidder won, and the fraction c that it kept after its payment."""
    gpus = sum(bid["won"].values())
    return f"won {gpus} (c {bid['c']:.2f})" if gpus else "won nothing" if bid["rows"] else "bid for nothing"


def held(row: dict[str, Any]) -> int:
    """GPUs that a row of the queue holds."""
    return int(row.get("gpus_held", row.get("gpus", 0)))


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=REPO / "build/demo/cluster")
@click.option("--out", type=click.Path(path_type=Path), default=REPO / "build/demo/report.json")
@click.option("--keep", is_flag=True, help="Leave cluster and control plane running afterwards.")
def main(folder: Path, out: Path, keep: bool) -> None:
    """Run the main job on a fresh pseudo-distributed Hadoop; four to five minutes, up to four times as long on a busy
    machine."""
    slower = busy.factor()
    settings = (*SETTINGS, *(f"isonomy.{k}={seconds * slower:g}" for k, seconds in TIMES_S.items()))
    demo = Demo(folder.resolve(), out, settings, slower=slower)
    with demo.running("themis", keep):
        succeeded = demo.run()
        demo.isonomy("explain", "vision")
        demo.say(f"the same cluster under the default policy, {DEFAULT}")
        succeeded = demo.serve_by_size() and succeeded
        data, good = demo.report()
        for missing in (*missed(data, demo.resumed), *demo.refused, *demo.seen_in_browser()):
            good = False
            demo.say(f"MISSING: {missing}, which every run of the demo is to show")
        if not data["seen"]["bids_with_c_below_1"]:
            demo.say("no bid was cut by a payment in this run: whole gangs are paid by lot")
        audit = "clean" if not data["audit"]["violations"] else "NOT clean"
        demo.say(f"report: {out}; {data['rounds']} rounds; audit {audit}")
    if not (succeeded and good):
        raise click.ClickException("the demo failed; see above")
    demo.say("every app succeeded, the audit is clean, the models are on HDFS, and every feature was shown")
