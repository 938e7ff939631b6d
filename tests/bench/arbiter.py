"""The cost of an event in the Arbiter itself: a busy cluster of single-gang apps, first come first served."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.auction.placing import place_gang, take
from pycontrol.model import events as ev
from pycontrol.model.auction import Award, Bid, Demand, Offer, Plan, Snapshot, gang_gpus
from pycontrol.model.cluster import Ask, Container, Node, YarnApp


class FirstCome:
    """The cheapest possible policy, so that the Arbiter's own cost dominates."""

    name, asks_agents = "first-come", False

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """An offer that asks no app."""
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """Renews running gangs, then serves apps by arrival until a gang does not fit."""
        free, awards = dict(snapshot.free), []
        for view in snapshot.apps:
            if view.ending_gangs:
                take(free, view.ending_gangs)
                awards.append(Award(view.app_id, view.ending_gangs))
        left = sum(free.values())
        for view in sorted((v for v in snapshot.apps if not v.ending_gangs), key=lambda v: v.submitted_s):
            if left < view.demand.gang_gpus or not view.unmet_gpus:
                continue
            gang = place_gang(view.demand.gang_gpus, view.demand.scope, free, snapshot.topology)
            if gang is not None:
                take(free, [gang])
                left -= gang_gpus(gang)
                awards.append(Award(view.app_id, (gang,)))
        return Plan(snapshot.round_id, tuple(awards))


class World:
    """YARN and the apps' Agents, reduced to the events that the Arbiter needs."""

    def __init__(self, machines: int, apps: int, load: float, seed: int) -> None:
        self.policy = FirstCome()
        self.arbiter = Arbiter(Settings(open_leases=True, settle_s=1.0, grant_timeout_s=600), self.policy)
        self.now_s, self.events, self.rounds, self.policy_s, self.check_s = 0.0, 0, 0, 0.0, 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order, self.ids = itertools.count(), itertools.count(1)
        nodes = tuple(Node(f"n{i}:1", f"n{i}", f"r{i // 16}", 8) for i in range(machines))
        self.say(ev.ClusterSnapshot(True, nodes, (), (), ()))
        rng, at_s = random.Random(seed), 10.0
        gangs = (1, 1, 1, 1, 2, 4, 8)
        mean_s = 3600.0
        gap_s = mean_s * sum(gangs) / len(gangs) / (load * machines * 8)
        for k in range(apps):
            at_s += rng.expovariate(1 / gap_s)
            gpus, run_s = rng.choice(gangs), rng.expovariate(1 / mean_s)
            self.at(at_s, lambda k=k, g=gpus, r=run_s: self.arrive(f"a{k}", g, r))  # type: ignore[misc]
        self.size: dict[str, tuple[int, float]] = {}

    def at(self, at_s: float, fn: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (at_s, next(self.order), fn))

    def run(self) -> None:
        """Runs until no event is left."""
        while self.heap:
            wake_s = self.arbiter.next_wake_s(self.now_s)
            if wake_s is not None and wake_s <= self.heap[0][0]:
                self.now_s = max(self.now_s, wake_s)
                self.say(ev.Tick())
            else:
                self.now_s, _, fn = heapq.heappop(self.heap)
                fn()

    def say(self, event: ev.Event) -> None:
        self.events += 1
        effects, begin_s = self.arbiter.handle(event, self.now_s), time.perf_counter()
        self.arbiter.check(self.arbiter.take_facts(), effects)
        self.check_s += time.perf_counter() - begin_s
        for effect in effects:
            if isinstance(effect, ev.Solve):
                self.rounds += 1
                begin_s = time.perf_counter()
                plan = self.policy.decide(effect.snapshot, effect.bids, random.Random(effect.seed))
                self.policy_s += time.perf_counter() - begin_s
                self.say(ev.Decided(effect.snapshot.round_id, plan))
            elif isinstance(effect, ev.SendGrant) and not effect.renewal:
                self.use(effect)
            elif isinstance(effect, ev.Place):
                self.place(effect)

    def arrive(self, app_id: str, gpus: int, run_s: float) -> None:
        self.size[app_id] = (gpus, run_s)
        self.say(ev.AppAdded(YarnApp(app_id, "u", "root.q", app_id, "SUBMARINE", self.now_s, frozenset(), app_id)))
        self.say(ev.AgentUp(app_id, app_id, "single", Demand(gpus, 1, gpus, run_s * gpus, run_s * gpus)))

    def use(self, e: ev.SendGrant) -> None:
        by_host: dict[str, list[Any]] = {}
        for gpu in e.grant.gpus:
            by_host.setdefault(gpu.host, []).append(gpu)
        plans = [ev.WorkerPlan(f"w{r}", "j", tuple(g), r) for r, g in enumerate(by_host.values())]
        self.say(ev.UsePlanned(e.app_id, "u", tuple(plans)))
        for plan in plans:
            self.say(ev.AskChanged(Ask(e.app_id, e.app_id, plan.allocation_request_id, len(plan.gpus), 1)))

    def place(self, e: ev.Place) -> None:
        app_id, ask = e.ask.app_id, e.ask
        container = Container(f"c{next(self.ids)}", app_id, e.node_id, e.gpus, e.lease_id, ask.allocation_request_id)
        self.say(ev.DirectiveDone(e.directive_id, True, container.container_id))
        self.say(ev.AskChanged(Ask(ask.attempt_id, app_id, ask.allocation_request_id, ask.gpus, 0)))
        self.say(ev.ContainerUp(container, True))
        if ask.allocation_request_id == 0:
            self.at(self.now_s + self.size[app_id][1], lambda: self.end(app_id))

    def end(self, app_id: str) -> None:
        self.say(ev.AgentDone(app_id, True))
        self.say(ev.AppRemoved(app_id, "FINISHED"))
        for container in [c for c in self.arbiter.cluster.containers.values() if c.app_id == app_id]:
            self.say(ev.ContainerGone(container.container_id))


def run(quick: bool = False) -> dict[str, Any]:
    """Events a second, without the policy's time, on 64 and 1,250 machines of eight GPUs at loads 0.7 and 1.2."""
    result: dict[str, Any] = {}
    for machines, load in ((64, 0.7), (64, 1.2), (1250, 0.7)):
        world = World(machines, 1000 if quick else 5000, load, seed=1)
        begin_s = time.perf_counter()
        world.run()
        total_s = time.perf_counter() - begin_s
        own_s = total_s - world.policy_s
        result[f"{machines * 8} GPUs, load {load}"] = {
            "events": world.events,
            "rounds": world.rounds,
            "events_per_s_without_policy": world.events / own_s,
            "total_s": total_s,
            "policy_s": world.policy_s,
            "check_share": world.check_s / own_s,
        }
    return result


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=1))
