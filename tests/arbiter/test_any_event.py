"""Any event in any state: nothing raises, and the invariants hold.

Every event is drawn at random from few names, so that most events contradict earlier ones: containers of
unknown apps, plans for others' GPUs, answers to finished rounds, Hellos that omit known applications.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, BidRow, Demand, as_gang
from pycontrol.model.cluster import Ask, Container, Node, Queue, YarnApp
from pycontrol.model.reasons import SENTENCES
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.mini import CELLS, Mini

SETTINGS = Settings(lease_s=30, grant_timeout_s=10, recovery_s=2, round_retry_s=3)
APPS = ("a", "b", "c", "d")
HOSTS = ("n1", "n2", "n3")
QUEUES = (Queue("root.full", 0.0, 0.0), Queue("root.b", default_partition="p"))


class Noise:
    """Draws random events."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.kinds: list[Callable[[], ev.Event]] = [
            self.snapshot,
            self.node_up,
            lambda: ev.NodeDown(f"{self.host()}:1", "lost"),
            lambda: ev.ClusterChanged(QUEUES[: self.r.randrange(3)], (ev.NodeDown(f"{self.host()}:1", "LOST"),)),
            lambda: ev.AppAdded(self.app()),
            lambda: ev.AppUpdated(self.app()),
            lambda: ev.AppRemoved(self.name(), self.r.choice(["", "KILLED"])),
            lambda: ev.AttemptAdded(f"{self.name()}_1", self.name()),
            lambda: ev.AttemptRemoved(f"{self.name()}_1", self.name()),
            lambda: ev.AskChanged(self.ask()),
            lambda: ev.AskChanged(self.ask()),
            lambda: ev.ContainerUp(self.container(), self.r.random() < 0.5),
            lambda: ev.ContainerGone(f"c{self.r.randrange(9)}"),
            lambda: ev.DirectiveDone(f"d{self.r.randrange(1, 9)}.1", self.coin(), f"c{self.r.randrange(9)}", "no"),
            ev.ClusterReady,
            ev.ClusterLost,
            lambda: ev.AgentUp(self.name(), "", "single", self.demand(), user=self.r.choice(["", "u"])),
            lambda: ev.AgentUp(self.name(), "", "asha", self.demand()),
            lambda: ev.AgentLost(self.name()),
            lambda: ev.RhoReported(self.name(), self.round(), self.r.choice([1e-9, 1.0, 1e12]), self.demand()),
            lambda: ev.BidReceived(self.name(), self.round(), self.bid()),
            lambda: ev.UsePlanned(self.name(), f"u{self.r.randrange(9)}", self.plans()),
            lambda: ev.UsePlanned(self.name(), f"u{self.r.randrange(9)}", self.plans()),
            lambda: ev.GpusReleased(self.name(), frozenset(self.gpus())),
            self.progress,
            lambda: ev.AgentDone(self.name(), self.r.random() < 0.5, best_job_id="j"),
            lambda: ev.OperatorCommand(
                self.r.choice(["pause", "resume", "resume", "drain", "undrain", "kill", "dance"]),
                self.r.choice([*APPS, *HOSTS]),
                "root",
            ),
            lambda: ev.OperatorCommand(
                self.r.choice(["budget-set", "budget-reset"]),
                self.r.choice(["user u", "queue root.a", "queue root"]),
                "root",
                values=self.r.choice([{"gpus": 1}, {"gpu_hours_day": 0.01}, {"gpu_hours_month": 0}, {}]),
            ),
            ev.Tick,
            lambda: ev.Decided(self.round(), None, "late"),
            lambda: ev.ExchangePosted(
                "offer", f"p{self.r.randrange(3)}", self.r.choice(["root.a", "root.b", "x"]), ("big", "pair", 1), 1e9
            ),
        ]

    def event(self) -> ev.Event:
        """A random event; half of the time one that lets rounds be held."""
        if self.coin():
            return self.r.choice(self.kinds)()
        good = [
            self.node_up,
            lambda: ev.AppAdded(self.app()),
            lambda: ev.AskChanged(self.ask()),
            lambda: ev.AgentUp(self.name(), "", "asha", self.demand()),
            lambda: ev.OperatorCommand("resume"),
            ev.ClusterReady,
        ]
        return self.r.choice(good)()

    def coin(self) -> bool:
        return self.r.random() < 0.5

    def name(self) -> str:
        return self.r.choice(APPS)

    def host(self) -> str:
        return self.r.choice(HOSTS)

    def round(self) -> str:
        return f"r1.{self.r.randrange(1, 20)}"

    def demand(self) -> Demand:
        gangs, left_gpu_s = self.r.choice([0, 1, 3, 1 << 20]), self.r.choice([0, 1e12])
        return Demand(self.r.choice([1, 1, 2, 4, 9, 1 << 20]), gangs, work_left_gpu_s=left_gpu_s)

    def bid(self) -> Bid:
        rows = tuple(BidRow(self.r.choice([0.1, 1.0]), (), self.r.randrange(3), 1, Scope.CLUSTER) for _ in range(2))
        return Bid(self.name(), 5.0, rows)

    def gpus(self) -> list[Gpu]:
        host = self.host()
        return sorted({Gpu(host, self.r.randrange(5)) for _ in range(self.r.randrange(1, 4))})

    def plans(self) -> tuple[ev.WorkerPlan, ...]:
        r, n = self.r, self.r.randrange(3)
        return tuple(ev.WorkerPlan(f"w{r.randrange(9)}", "j", tuple(self.gpus()), r.randrange(4)) for _ in range(n))

    def app(self) -> YarnApp:
        name, tags = self.name(), frozenset({"isonomy"} if self.r.random() < 0.5 else ())
        queue = self.r.choice(["root.a", "root.b", "root.q", "root.full"])
        attempt = self.r.choice(["", f"{name}_1", f"{name}_2"])
        return YarnApp(name, self.r.choice("uv"), queue, name, "", self.r.choice([0.0, 1000.0, 1e9]), tags, attempt)

    def ask(self) -> Ask:
        name = self.name()
        only_on = self.r.choice([(), (), ("n1",), ("nowhere",)])
        gpus, count = self.r.choice([0, 1, 2, 9]), self.r.choice([0, 1, 3, 2**31 - 1])
        return Ask(
            f"{name}_1",
            name,
            self.r.randrange(4),
            gpus,
            count,
            only_on=only_on,
            partition=self.r.choice([None, "", "p"]),
        )

    def container(self) -> Container:
        gpus = tuple(self.gpus()) if self.r.random() < 0.9 else ()
        host = gpus[0].host if gpus else "n1"
        ending = self.r.random() < 0.1
        return Container(
            f"c{self.r.randrange(9)}", self.name(), f"{host}:1", gpus, "r1.1.0", ending=ending, plain=len(gpus) == 3
        )

    def node(self, host: str) -> Node:
        r = self.r
        bad = frozenset(r.sample(range(4), r.choice([0, 0, 1])))
        return Node(
            f"{host}:{r.choice([1, 1, 2])}",
            host,
            "r",
            r.choice([0, 2, 4, 4]),
            bad_gpus=bad,
            decommissioning=r.random() < 0.1,
            partition=r.choice(["", "", "", "p"]),
            untagged_gpus=r.choice([0, 0, 0, 1]),
            withheld=r.choice(["", "", "", "why"]),
        )

    def node_up(self) -> ev.NodeUp:
        return ev.NodeUp(self.node(self.host()))

    def snapshot(self) -> ev.ClusterSnapshot:
        r, gpus, containers = self.r, set[Gpu](), []
        for c in (self.container() for _ in range(r.randrange(4))):
            if not gpus & set(c.gpus):  # a ResourceManager's snapshot does not contradict itself
                gpus.update(c.gpus)
                containers.append(c)
        return ev.ClusterSnapshot(
            r.random() < 0.8,
            tuple(self.node(h) for h in r.sample(HOSTS, r.randrange(4))),
            tuple({a.app_id: a for a in (self.app() for _ in range(r.randrange(5)))}.values()),
            tuple(self.ask() for _ in range(r.randrange(4))),
            tuple({c.container_id: c for c in containers}.values()),
            QUEUES,
            r.choice(["", "l1", "l1", "l2"]),
        )

    def progress(self) -> ev.ProgressReported:
        r = self.r
        jobs = tuple(ev.JobProgress(f"j{k}", "running", r.randrange(9), launches=r.randrange(4)) for k in range(2))
        return ev.ProgressReported(self.name(), self.demand(), jobs, self.r.choice([0.0, 1.0]))


def holds(m: Mini) -> None:
    """Checks the invariants."""
    a = m.a
    usable = {g for g in a.holdings.usable_gpus() if g not in a.durable.leases and g not in a.cluster.container_at}
    assert set(a.gpus.free) == usable
    assert a.gpus.free.counts() == dict(as_gang(usable))
    assert {x.app_id for x in (*a.durable.leases.values(), *a.durable.reservations.values())} <= a.durable.apps.keys()
    for gpu in a.durable.reservations:
        assert gpu in a.durable.leases
    assert all(n >= 0 for n in a.durable.held.values())
    assert all(c.count >= 0 for c in a.durable.clocks.values())
    for app_id in APPS:
        assert reason(a, app_id, m.now).code in SENTENCES


@pytest.mark.parametrize("with_cells", [False, True])
@pytest.mark.parametrize("policy", registry.names())
def test_no_sequence_of_events_raises(policy: str, with_cells: bool) -> None:
    for seed in range(4):
        noise = Noise(seed)
        chosen = ByVirtualCluster(registry.make(policy)) if with_cells else registry.make(policy)
        supply = CELLS if with_cells else None
        m = Mini(chosen, SETTINGS, durable=Durable(), supply=supply)
        for step in range(250):
            if step % 80 == 79:  # killed and restarted
                durable = Durable.load(json.loads(json.dumps(m.a.durable.dump())))
                now = m.now
                m = Mini(chosen, SETTINGS, durable=durable, supply=supply, epoch=2 + step)
                m.now = now
            m.send(noise.event())
            holds(m)
            m.now += noise.r.choice([0.0, 0.01, 0.5, 5.0])
            m.send(ev.Tick())
        assert not m.problems
