"""A busy cluster for the page: the simulator's world, named apps, a feed behind the real router, HTTP on loopback."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pycontrol.arbiter.core import Arbiter
from pycontrol.lab.clusters import uniform
from pycontrol.model import events as ev
from pycontrol.model.cluster import Node, Queue
from pycontrol.model.topology import Topology
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.trends import SAMPLE_S
from pycontrol.runtime.journal import NoJournal
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulated_jobs import RUNNING
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from pycontrol.web.feed import Feed
from pycontrol.web.router import Router
from tests.httpd import Asked, Reply, serving

T = TypeVar("T")
HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'</script>\"'&"
NAMES = ("resnet-sweep", "bert-base", "whisper-ft", "vit-l16", "llama-lora", "recsys-v3", "seg-unet", "tabular")
QUEUES = {"root.prod": 0.5, "root.research": 0.3, "root.default": 0.2}
USERS = ("ann", "bob", "chen", "dora", "eve")
BEGIN_S = 1_790_000_000.0


class Stage(Simulator):
    """A simulation whose facts go to a feed, and which can be stopped to look at it."""

    def __init__(self, workload: Workload, topology: Topology, policy: Policy, names: dict[str, str]) -> None:
        settings = SimulationSettings(arbiter=dataclasses.replace(ARBITER, lease_s=600.0, settle_s=0.3))
        queues = tuple(Queue(path, part) for path, part in QUEUES.items())
        super().__init__(workload, topology, policy, settings, 1, queues)
        self.names = names
        self.feed = Feed(NoJournal(), first_seq=1)
        self.facts: list[Any] = []
        self._take_facts = self.arbiter.take_facts
        self.arbiter.take_facts = self._keep_facts  # type: ignore[method-assign]
        self.now = BEGIN_S
        for trace in workload.apps:
            self.at(trace.submitted_s, self.arrive, trace)
        self.inbox.append(self.yarn.snapshot())
        self._drain()

    def arrive(self, trace: TraceApp, stamp: int) -> None:
        super().arrive(trace, stamp)
        for i, event in enumerate(self.inbox):
            if isinstance(event, ev.AppAdded):
                name = self.names.get(event.app.app_id, event.app.name)
                self.inbox[i] = dataclasses.replace(event, app=dataclasses.replace(event.app, name=name))

    def _keep_facts(self) -> list[Any]:
        facts = self._take_facts()
        self.facts += facts
        return facts

    def run_until(self, at_s: float) -> None:
        """Runs to that time, with a sample of the trends every 15 s."""
        while self.now < at_s:
            stop_s = min(at_s, self.now + SAMPLE_S)
            while self._moment() < stop_s and self._step():
                self.feed.append(self.facts, self.now)
                self.facts.clear()
            self.now = max(self.now, stop_s)
            self.report_jobs()
            self.feed.trends.sample(self.arbiter, self.now)

    def _moment(self) -> float:
        """The time of the next event."""
        wake_s = self.arbiter.next_wake_s(self.now)
        return min(self.heap[0][0] if self.heap else math.inf, math.inf if wake_s is None else wake_s)

    def report_jobs(self) -> None:
        """Reports the jobs' states as Agents would."""
        for app_id, app in self.apps.items():
            agent = self.arbiter.agents.get(app_id)
            if agent is None:
                continue
            agent.demand = app.demand(self.now)
            agent.jobs = tuple(self._progress(app_id, k, job) for k, job in enumerate(app.jobs))
            self.feed.trends.progressed(app_id, agent.jobs)

    def _progress(self, app_id: str, k: int, job: Any) -> ev.JobProgress:
        whole_gpu_s = job.app.trace.phases[job.app.phase][job.index]
        done = 1.0 - job.left_at(self.now) / whole_gpu_s
        noise = random.Random(f"{app_id} {k} {int(done * 400)}").uniform(0.9, 1.1)
        loss = 2.3 / (1 + 9 * done) * noise
        return ev.JobProgress(
            job.job_id,
            "running" if job.state == RUNNING else "waiting",
            int(done * 4000),
            loss,
            1 - loss / 3,
            0.21,
            1.0,
            len(job.gpus),
            0,
            job.launches,
            0,
            {"lr": f"{0.001 * (k + 1):g}", "batch": str(32 * (1 + k % 3))},
        )

    # ---- the driver

    def submit(self, event: ev.Event) -> None:
        self.inbox.append(event)
        self._drain()

    def call(self, fn: Callable[[Arbiter, float], T], timeout_s: float = 5.0) -> T:
        return fn(self.arbiter, self.now)


def busy(policy: Policy, machines: int = 12, gpus: int = 8, apps: int = 40, hours: float = 6.0, seed: int = 3) -> Stage:
    """Apps of five users over `hours`; the second one's name is hostile."""
    rng = random.Random(seed)
    traces, names = [], {}
    for i in range(apps):
        app_id = f"application_1790000000000_{i + 1:04d}"
        gang = rng.choice((1, 1, 2, 4, 8))
        jobs = rng.choice((1, 2, 4, 8))
        work = tuple(gang * rng.uniform(900, 12000) for _ in range(jobs))
        at_s = BEGIN_S + 1 + 3600 * hours * 0.98 * i / apps
        queue, user = rng.choice(list(QUEUES)), rng.choice(USERS)
        traces.append(TraceApp(app_id, at_s, gang, (work,), queue, user))
        names[app_id] = HOSTILE if i == apps - 2 else f"{rng.choice(NAMES)}-{i + 1}"
    stage = Stage(Workload("busy", tuple(traces)), uniform(machines, gpus, 4), policy, names)
    stage.run_until(BEGIN_S + 3600 * hours)
    return stage


def add_troubles(stage: Stage) -> None:
    """A bad GPU, a machine that is drained and one that is down."""
    a = stage.arbiter
    nodes: list[Node] = sorted(a.cluster.nodes.values(), key=lambda n: n.host)
    stage.submit(ev.NodeUp(dataclasses.replace(nodes[0], bad_gpus=frozenset({5}), note="GPU 5: ECC errors")))
    stage.submit(ev.OperatorCommand("drain", nodes[4].host, "root"))
    stage.submit(ev.NodeDown(nodes[7].node_id, "lost"))


def router_of(stage: Stage) -> Router:
    """The real router over it."""
    return Router(stage, issue=lambda app_id, user: "", arbiter_address="host:1", feed=stage.feed)


class Served:
    """The router behind HTTP on loopback, as the ResourceManager would serve it. `down`: the control plane is away."""

    def __init__(self, router: Router) -> None:
        self.router, self.lock, self.down = router, threading.Lock(), False
        self.asked: list[str] = []
        self.yarn: dict[str, Any] = {}
        """Path -> answer of what YARN itself serves."""
        self.url = ""

    def answer(self, asked: Asked) -> Reply:
        params = {k: v for k, v in asked.params.items() if k != "user.name"}
        path = asked.path.removeprefix("/ws/v1/cluster/isonomy/")
        with self.lock:
            self.asked.append(path)
            if path in self.yarn:
                return Reply(self.yarn[path])
            if self.down:
                return Reply({"error": "away"}, 503)
            status, answer = self.router.handle("GET", path, params, "ann", False)
        if "text" not in answer:
            return Reply(answer, status)
        headers = {"Content-Type": answer["content_type"], **answer.get("headers", {})}
        return Reply(answer["text"].encode(), status, headers)


@contextmanager
def served(router: Router) -> Iterator[Served]:
    """A server for it."""
    found = Served(router)
    with serving(found.answer) as url:
        found.url = f"{url}/ws/v1/cluster/isonomy/ui"
        yield found
