"""Mode shadow: CapacityScheduler allocates the GPUs, and shadow rounds find what Isonomy would have decided.

Each time that CapacityScheduler has allocated GPUs, an Arbiter with the production code holds rounds on the same
cluster, with the asks of these new containers reopened. Its decisions are not carried out, journaled or sent to
anyone. Apps' clocks and the policy's memory carry over from one decision to the next; attained service is what the
apps really had.

In this mode the GPU indices of a container are unknown; it is assumed to have its machine's lowest free ones.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, LeaseGranted, LeaseRevoking
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Mode, YarnApp
from pycontrol.model.topology import Gpu, Topology
from pycontrol.model.value import value
from pycontrol.policies import salvage
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.pending_reasons import Reasons

STEPS_MAX = 200
"""The most Arbiter steps of one decision, in case the Arbiter never becomes idle."""
DECISIONS_KEPT = 1000
SHOWN = 20
LIFE = "shadow"


@value
class AsIf:
    """The result of one look: GPUs by app."""

    at_s: float
    given: Mapping[str, int]
    """GPUs that CapacityScheduler has given since the previous look."""
    would_give: Mapping[str, int]
    """GPUs that Isonomy would have given instead."""
    would_take: Mapping[str, int] = field(default_factory=dict)
    """GPUs that Isonomy would have revoked from running apps."""
    why: Mapping[str, str] = field(default_factory=dict)
    """For the apps that Isonomy would have given fewer GPUs: its reason."""

    @property
    def same_gpus(self) -> int:
        """GPUs that both would give to the same apps."""
        return sum(min(n, self.would_give.get(app_id, 0)) for app_id, n in self.given.items())


def seen(a: Arbiter) -> ev.ClusterSnapshot | None:
    """The cluster as the plugin reported it; None if the mode is not shadow."""
    c = a.cluster
    if not c.seen or c.switch.mode is not Mode.SHADOW:
        return None
    asks = tuple(ask for app_id in c.asks.apps() for ask in c.asks.of(app_id).values())
    nodes, apps, queues = tuple(c.nodes.values()), tuple(c.apps.values()), tuple(c.queues.values())
    return ev.ClusterSnapshot(True, nodes, apps, asks, tuple(c.containers.values()), queues, LIFE)


class ShadowRounds:
    """Holds shadow rounds; one thread calls `look` and `interrupted`, any thread may call `view`."""

    def __init__(
        self,
        settings: Settings,
        policy: Callable[[], Policy],
        topology: Topology | None = None,
        supply: Callable[[], Supply | None] = lambda: None,
    ) -> None:
        self._settings = replace(settings, recovery_s=0.0)
        self._policy, self._topology, self._supply = policy, topology, supply
        self._kept: Mapping[str, Any] = Durable().dump()
        self._epochs = itertools.count(1)
        self._before: dict[str, Container] | None = None
        """The containers of the last look, with their GPUs; None before the first look in this mode."""
        self._asked: frozenset[Ask] = frozenset()
        self._looked_s = 0.0
        self._since_s: float | None = None
        self._apps: dict[str, YarnApp] = {}
        self._found: deque[AsIf] = deque(maxlen=DECISIONS_KEPT)
        self._sums: dict[tuple[str, str], Counter[str]] = {}
        self._totals: Counter[str] = Counter()

    def look(self, now: ev.ClusterSnapshot, now_s: float) -> AsIf | None:
        """Decide as Isonomy would have since the last look; None if there is nothing to compare or nothing new."""
        running = self._with_gpus(now)
        first = self._before is None
        before = running if self._before is None else self._before
        new = {x: c for x, c in running.items() if x not in before and c.gpu_count}
        self._attain(before, now_s)
        asked = frozenset(now.asks)
        changed = first or bool(new) or asked != self._asked or running.keys() != before.keys()
        self._before, self._asked, self._looked_s = running, asked, now_s
        if not changed:
            return None
        self._apps = {x.app_id: x for x in now.apps}
        found = self._decide(now, running, new, now_s)
        if first:  # containers from before the first look are not compared
            self._since_s = self._since_s or now_s
            return None
        last = self._found[-1] if self._found else None
        if not found.given and (not found.would_give or (last is not None and found == replace(last, at_s=now_s))):
            return None  # no GPUs were given, and the result is empty or unchanged
        self._count(found)
        return found

    def interrupted(self) -> None:
        """Note that the mode is not shadow: containers that start meanwhile are not compared."""
        self._before, self._looked_s = None, 0.0

    def _with_gpus(self, now: ev.ClusterSnapshot) -> dict[str, Container]:
        """The running containers by id, each with GPUs of its machine."""
        host_of = {n.node_id: n for n in now.nodes}
        before = self._before or {}
        placed = [c for c in now.containers if not c.ending and c.node_id in host_of]
        known = {
            c.container_id: c.gpus or before[c.container_id].gpus for c in placed if c.gpus or c.container_id in before
        }
        taken = {gpu for gpus in known.values() for gpu in gpus}
        found = {}
        for c in placed:
            node = host_of[c.node_id]
            if c.container_id not in known:
                free = (g for i in node.good_gpus if (g := Gpu(node.host, i)) not in taken)
                known[c.container_id] = tuple(itertools.islice(free, c.gpu_count))
                taken.update(known[c.container_id])
            found[c.container_id] = replace(
                c, gpus=known[c.container_id], lease_id=c.lease_id or f"cs-{c.container_id}", plain=False
            )
        return found

    def _attain(self, before: Mapping[str, Container], now_s: float) -> None:
        """Add the GPU-seconds that apps really had since the last look to their attained service."""
        passed_s = max(0.0, now_s - self._looked_s) if self._looked_s else 0.0
        had = Counter[str]()
        for c in before.values():
            had[c.app_id] += len(c.gpus)
        apps = [{**x, "attained_gpu_s": x["attained_gpu_s"] + passed_s * had[x["app_id"]]} for x in self._kept["apps"]]
        self._kept = {**self._kept, "apps": apps}

    def _decide(
        self, now: ev.ClusterSnapshot, running: Mapping[str, Container], new: Mapping[str, Container], now_s: float
    ) -> AsIf:
        world = replace(
            now,
            nodes=tuple(replace(n, untagged_gpus=0, withheld="") for n in now.nodes),
            queues=tuple(replace(q, unmanaged=False) for q in now.queues),
            containers=tuple(c for x, c in running.items() if x not in new),
            asks=reopened(now, new),
        )
        durable = Durable.load({**self._kept, "leases": [], "next": []})
        policy = self._policy()
        arbiter = Arbiter(self._settings, policy, durable, self._topology, next(self._epochs), self._supply(), LIFE)
        given, taken = Counter[str](), Counter[str]()
        until_s, adopted = now_s, {c.lease_id for c in world.containers}
        for fact, at_s in facts_of(arbiter, policy, world, now_s):
            until_s = at_s
            match fact:
                case LeaseGranted() if fact.grant_id not in adopted:
                    given[fact.app_id] += len(fact.gpus)
                case LeaseRevoking():
                    taken.update(x.app_id for gpu in fact.gpus if (x := arbiter.durable.leases.get(gpu)) is not None)
        theirs = Counter[str]()
        for c in new.values():
            theirs[c.app_id] += c.gpu_count
        reasons = Reasons(arbiter, until_s)
        fewer = [x for x, n in theirs.items() if given[x] < n]
        self._kept = arbiter.durable.kept_here()
        return AsIf(now_s, dict(theirs), dict(given), dict(taken), {x: reasons.of(x).sentence for x in fewer})

    def _count(self, found: AsIf) -> None:
        self._found.append(found)
        same = int(dict(found.given) == dict(found.would_give))
        self._totals.update(decisions=1, gpus=sum(found.given.values()), same_gpus=found.same_gpus, same=same)
        for what in ("given", "would_give", "would_take"):
            for app_id, gpus in getattr(found, what).items():
                app = self._apps.get(app_id)
                key = (app.queue, app.user) if app is not None else ("", "")
                self._sums.setdefault(key, Counter())[what] += gpus

    def view(self) -> dict[str, Any]:
        """Totals, sums by user, and the newest decisions (newest first), as JSON values."""
        return {
            "since_s": self._since_s,
            **{name: self._totals[name] for name in _NO_SUMS},
            "by_user": [
                {"queue": queue, "user": user, **{n: c[n] for n in ("given", "would_give", "would_take")}}
                for (queue, user), c in sorted(self._sums.copy().items())
            ],
            "newest": [asdict(x) for x in itertools.islice(reversed(self._found.copy()), SHOWN)],
        }


_NO_SUMS = {"decisions": 0, "same": 0, "gpus": 0, "same_gpus": 0}
NOTHING: Mapping[str, Any] = {"since_s": None, **_NO_SUMS, "by_user": [], "newest": []}
"""The view if the mode was never shadow."""


def reopened(now: ev.ClusterSnapshot, new: Mapping[str, Container]) -> tuple[Ask, ...]:
    """The asks as they were before these containers were allocated."""
    asks = {ask.key: ask for ask in now.asks}
    attempts = {x.app_id: x.attempt_id for x in now.apps}
    partition_of = {n.node_id: n.partition for n in now.nodes}
    for c in new.values():
        attempt = c.attempt_id or attempts.get(c.app_id, "")
        like = (attempt, c.allocation_request_id, c.gpu_count)
        alike = (x for x in asks.values() if (x.attempt_id, x.allocation_request_id, x.gpus) == like)
        ask = next(alike, None) or Ask(
            attempt, c.app_id, c.allocation_request_id, c.gpu_count, 0, partition=partition_of.get(c.node_id, "")
        )
        asks[ask.key] = replace(ask, count=ask.count + 1)
    return tuple(asks.values())


def facts_of(a: Arbiter, policy: Policy, world: ev.ClusterSnapshot, now_s: float) -> Iterator[tuple[Fact, float]]:
    """(fact, time) of the Arbiter's decisions on a frozen cluster that carries out none of them.

    Stops when the Arbiter is idle, before the grant timeout and the lead have passed, or after STEPS_MAX wake-ups.
    """
    event: ev.Event = world
    until_s = now_s + min(a.settings.grant_timeout_s, a.settings.lead) / 2.0
    for _ in range(STEPS_MAX):
        yield from ((fact, now_s) for fact in at_once(a, policy, [event], now_s))
        wake_s = a.next_wake_s(now_s)
        if wake_s is None or wake_s > until_s:
            return
        now_s, event = max(wake_s, now_s + 1e-3), ev.Tick()


Answer = Callable[[ev.Effect], ev.Event | None]
"""What an Agent says to an effect that is for it; None: nothing."""


def at_once(
    a: Arbiter, policy: Policy, inbox: Sequence[ev.Event], now_s: float, answer: Answer = lambda _: None
) -> Iterator[Fact]:
    """The facts of what the Arbiter decides at one moment; nothing of it is carried out."""
    for _ in range(STEPS_MAX):
        effects = a.handle_all(inbox, now_s)
        yield from a.take_facts()
        answers = (_decided(policy, x) if isinstance(x, ev.Solve) else answer(x) for x in effects)
        inbox = [x for x in answers if x is not None]
        if not inbox:
            return


def _decided(policy: Policy, effect: ev.Solve) -> ev.Decided:
    done = salvage.decide(policy, effect.snapshot, effect.bids, effect.seed)
    return ev.Decided(effect.snapshot.round_id, done.plan, done.problem, done.left_out)
