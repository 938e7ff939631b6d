"""What must hold in each state, at each step, and at the end of each quiet continuation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, LeaseEnded, LeaseGranted, LeaseRevoking
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.views.workers import WorkerState
from pycontrol.model import events as ev
from pycontrol.model.cluster import Container
from pycontrol.model.reasons import EndReason, Pending
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import reason

if TYPE_CHECKING:
    from tests.explore.world import World

WAKE_MAX_S = 1e5
"""A wake further away is none."""
MAY_WAIT = {
    Pending.EXCEEDS_CLUSTER_SIZE,
    Pending.NO_MACHINE_LARGE_ENOUGH,
    Pending.CELLS_TOO_SMALL,
    Pending.CELLS_BAD,
    Pending.NO_CELLS,
}
"""Reasons for which an app may wait for ever, as nothing but a change of the cluster helps."""

BY_TIME = {EndReason.LOST_ROUND, EndReason.LAPSED, EndReason.GUARANTEE, EndReason.BORROWED_SHARE, EndReason.MOVED}
"""Why no lease ends while leases are suspended."""


class Broken(AssertionError):
    """A promise does not hold."""


def expect(holds: object, text: str) -> None:
    """Raises Broken unless it holds."""
    if not holds:
        raise Broken(text)


class Before:
    """What counts of the state before an event."""

    def __init__(self, world: World) -> None:
        a = getattr(world, "arbiter", None)
        self.paused = a is not None and a.holdings.paused
        self.suspended = a is not None and (a.holdings.paused or not a.cluster.ready)
        self.kept = {gpu: until_s for gpu, until_s, later in world.loans() if later} if a is not None else {}


def fact(world: World, f: Fact) -> None:
    """Before it is applied: no GPU has two owners, no bad GPU gets one, none loses its lease while it is in use."""
    if isinstance(f, LeaseGranted):
        for gpu in f.gpus:
            present, coming = world.shadow.leases.get(gpu), world.shadow.reservations.get(gpu)
            expect((present is not None) == (gpu in f.after) and coming is None, f"{gpu} is granted twice: {f}")
            adopted = gpu in used(world) and used(world)[gpu].app_id == f.app_id
            expect(adopted or not world.arbiter.cluster.bad(gpu), f"{gpu} is bad and granted")
    elif isinstance(f, LeaseEnded) and world.rm_up:
        for gpu in f.gpus:
            lease = world.shadow.leases.get(gpu)
            at = used(world).get(gpu)
            if at is not None and lease is not None and at.app_id == lease.app_id:
                known = world.arbiter.cluster.container_at.get(gpu) == at.container_id
                expect(not known, f"the lease of {gpu} ends while {at} uses it")


def used(world: World) -> dict[Gpu, Container]:
    """GPU -> the container on it."""
    return {gpu: c for c in world.containers.values() for gpu in c.gpus}


def handled(world: World, event: ev.Event, before: Before, facts: Sequence[Fact], effects: Iterable[ev.Effect]) -> None:
    """After an event."""
    a, now = world.arbiter, world.now
    if before.suspended and isinstance(event, ev.Tick):
        moved = [f for f in facts if isinstance(f, LeaseGranted) or getattr(f, "cause", None) in BY_TIME]
        expect(not moved, f"leases stand still, but {moved}")
    if before.paused and not a.holdings.paused:
        short = [x for x in a.durable.leases.each() if x.end_s < now + 2 * a.holdings.lead_s - 1e-6]
        expect(not short, f"time in which leases stood still counts: {[(x.gpus, x.end_s - now) for x in short]}")
    placed: dict[str, int] = {}
    for e in effects:
        if isinstance(e, ev.Place):
            leases = [world.shadow.leases.get(gpu) for gpu in e.gpus]
            mine = all(x is not None and x.app_id == e.ask.app_id and x.state != REVOKING for x in leases)
            expect(mine, f"{e} without a lease of its GPUs")
            expect(not used(world).keys() & set(e.gpus), f"{e}, where {used(world)} is")
            placed[e.ask.app_id] = placed.get(e.ask.app_id, 0) + len(e.gpus)
        elif isinstance(e, ev.Kill) and e.container_id in world.containers:
            c = world.containers[e.container_id]
            leases = [world.shadow.leases.get(gpu) for gpu in c.gpus]
            holds = all(x is not None and x.app_id == c.app_id and x.state != REVOKING for x in leases)
            expect(not holds, f"{c} is killed, whose app holds its GPUs: {e}")
        elif isinstance(e, ev.SendGrant):
            claims = [(world.shadow.leases.get(g), world.shadow.reservations.get(g)) for g in e.grant.gpus]
            expect(
                all(any(x is not None and x.app_id == e.app_id for x in both) for both in claims),
                f"{e} is not in the journal",
            )
    if "agent" in placed:  # a worker may be tried again while its mate is there already, or on its way
        there = [c.gpus for c in world.containers.values() if c.app_id == "agent"]
        there += [d.gpus for d in world.directives if isinstance(d, ev.Place) and d.ask.app_id == "agent"]
        expect(placed["agent"] + sum(map(len, there)) >= 2, "half a gang is placed")
    for f in facts:
        if isinstance(f, LeaseRevoking) and f.cause == EndReason.LOST_ROUND:
            expect(f.end_s >= now + a.holdings.lead_s - 1e-6, f"a loser has {f.end_s - now} s: {f}")
        if isinstance(f, LeaseRevoking) and f.cause == EndReason.GUARANTEE and isinstance(event, ev.Decided):
            early = [gpu for gpu in f.gpus if now < before.kept.get(gpu, now)]
            expect(not early, f"a loan is called back before its time: {early}")


def decided(world: World, outcome: Any) -> None:
    """A policy does not fail."""
    expect(not outcome.problem and not outcome.left_out, f"the policy fails: {outcome}")


def state(world: World) -> None:
    """In each state."""
    a, now = world.arbiter, world.now
    a.validate(now)
    if _values(a.durable) != _values(world.shadow):  # as JSON, a tuple and a list are the same
        kept, fold = a.durable.dump(), world.shadow.dump()
        different = [k for k in kept if kept[k] != fold[k]]
        expect(not different, f"the fold of the facts is another state: {different}")
    wake_s = a.next_wake_s(now)
    expect(wake_s is None or wake_s - now < WAKE_MAX_S, f"it wakes {wake_s} s from now")
    if world.rm_up and a.cluster.ready:
        for x in a.durable.leases.each():
            expect(
                not x.container_id or x.container_id in world.containers, f"{x} is in use by a container of the past"
            )
        under_way = {d.directive_id for d in world.directives}
        sent = [w for w in a.workers if w.state is WorkerState.PLACING and w.directive_id not in under_way]
        expect(not sent, f"it waits for placements that nobody carries out: {sent}")
    answered = world.connected and "agent" in a.agents and a.agents["agent"].connected
    if answered and not world.inbox and not world.said:
        leased = [x for x in a.durable.leases.of("agent") if x.state != REVOKING]
        mine = {*gpus_in(leased), *gpus_in(a.durable.reservations.of("agent"))}
        lost = world.held - mine
        expect(not lost, f"the Agent was not told that it lost {sorted(map(str, lost))}")


def _values(d: Durable) -> dict[str, Any]:
    """The durable state by field; equal ones have the same JSON form."""
    named = {k: v for k, v in vars(d).items() if k not in ("table", "leases", "reservations", "held", "grants")}
    return {**named, "leases": list(d.leases.each()), "reservations": list(d.reservations.each())}


def quiet(world: World, cycle: Sequence[Glance]) -> str:
    """What is wrong if these states follow one another for ever; empty: nothing."""
    for app in cycle[0].waits:
        if all(app in x.waits and not x.held.get(app) for x in cycle):
            code = reason(world.arbiter, app, world.now).code
            if code not in MAY_WAIT:
                return f"{app} is never served: {code}"
    idle = frozenset.intersection(*(x.free for x in cycle))
    for app in cycle[0].waits:
        size = 2 if app == "agent" else 1
        if len(idle) >= size and all(app in x.waits for x in cycle):
            code = reason(world.arbiter, app, world.now).code
            if code not in MAY_WAIT:
                return f"{sorted(map(str, idle))} idle for ever while {app} wants more: {code}"
    return ""


class Glance:
    """What counts of a state of a quiet continuation."""

    def __init__(self, world: World) -> None:
        self.waits = frozenset(world.wanting())
        at = used(world)
        self.held: dict[str, int] = {}
        for c in at.values():
            self.held[c.app_id] = self.held.get(c.app_id, 0) + 1
        gpus = (Gpu(n.host, i) for n in world.nodes.values() for i in n.good_gpus)
        self.free = frozenset(g for g in gpus if g not in at and not (world.drained and g.host == "two"))
