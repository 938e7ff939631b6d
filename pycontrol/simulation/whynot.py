"""Why not me: the smallest changes that would give an app GPUs in a round that is held now.

Each answer is certified: the production round is played on the present scene with that change, and gives the app GPUs.
Changes are listed by kind in increasing size, those that cannot help are left out by counting, and the first of a kind
that the round confirms is the answer. Each is played in a child process, which is a copy of the scene's Arbiter.
"""

from __future__ import annotations

import enum
import gc
import math
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from pycontrol.arbiter import leases
from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.lease import REVOKING, Lease, gpus_in
from pycontrol.arbiter.ledger.limits import places
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.eligibility import fits_one_type
from pycontrol.arbiter.state import DRAINED, SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model import tags
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask, Node, Queue
from pycontrol.model.topology import Gpu, Scope
from pycontrol.model.value import value
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.simulation.scene import Gets, Scene, Stage
from pycontrol.words import count, span

BUDGET_S = 1.5
"""Wall-clock seconds of one question; to hand over the state of 10,000 GPUs takes up to half a second besides."""
SCOPES = {Scope.MACHINE: "on one machine", Scope.RACK: "in one rack", Scope.CLUSTER: "anywhere"}
APP = "{app}"
"""Stands for another app in a text, until it is known who reads it."""


class Kind(enum.StrEnum):
    """The kinds of changes; the unit of a size."""

    GANG = "gang"
    """A smaller gang; GPUs fewer."""
    TYPE = "type"
    """Other GPU types; 1 for another one, 2 for any, 3 for several in one gang."""
    PLACE = "place"
    """Other machines; steps of the scope, or 1 for a wish that is given up."""
    QUEUE = "queue"
    """Another queue; 1."""
    END = "end"
    """Another app ends; GPUs that it holds."""
    LEASE = "lease"
    """Another app gives one gang back; its GPUs."""
    NODE = "node"
    """A machine is in use again; GPUs."""
    LIMIT = "limit"
    """The queue's limit rises; GPUs."""


@value
class Change:
    """A change, as what the Arbiter would hear of it. `app_id`: the other app that it is about."""

    kind: Kind
    size: int
    text: str
    events: tuple[ev.Event, ...] = field(repr=False)
    app_id: str = ""
    due_s: float | None = None
    """When a lease that it needs ends, Unix seconds."""


Play = Callable[[Sequence[ev.Event]], Gets | None]


class Changes:
    """The changes that might help an app, in the state of an Arbiter."""

    def __init__(self, a: Arbiter, scene: Scene, app_id: str) -> None:
        self.a, self.scene, self.app_id = a, scene, app_id
        self.agent, self.app, self.record = a.agents.get(app_id), a.cluster.apps[app_id], a.durable.apps[app_id]
        self.demand = self.agent.demand if self.agent is not None else standin.demand(a.holdings, app_id, scene.now_s)
        self.typed = a.rounds.typed(self.record.vc)
        self.room_gpus = min(a.holdings.queue_rooms(app_id).values(), default=math.inf)
        self.loose = self._loose()
        self._loose_gpus = sum(self.loose.values())

    def by_kind(self) -> dict[Kind, Iterator[Change]]:
        """Kind -> its changes, smallest first."""
        has_agent = self.agent is not None
        return {
            Kind.GANG: self._gangs() if has_agent else _smallest_first(self._asks()),
            Kind.TYPE: self._types() if has_agent else iter(()),
            Kind.PLACE: self._places() if has_agent else self._no_terms(),
            Kind.QUEUE: self._queues(),
            Kind.END: _smallest_first(self._ends()),
            Kind.LEASE: _smallest_first(self._leases()),
            Kind.NODE: _smallest_first(self._nodes()),
            Kind.LIMIT: self._limits(),
        }

    # ---- what cannot help

    def _loose(self) -> dict[str, int]:
        """GPUs by host that a round could give at most: free ones, and those with leases that end or only borrow.

        Leases that a round may revoke are room in limits, too, of the queue or of one above.
        """
        a, found = self.a, dict[str, int]()
        ends_s = self.scene.now_s + 1.5 * a.holdings.lead_s
        for gpu in a.holdings.usable_gpus():
            x = a.durable.leases.get(gpu)
            if x is None or x.state is REVOKING or not x.guaranteed or x.end_s <= ends_s or x.app_id == self.app_id:
                found[gpu.host] = found.get(gpu.host, 0) + 1
                self.room_gpus += x is not None
        return found

    def _fits(self, demand: Demand, more: Sequence[Gpu] = ()) -> bool:
        """Whether a gang could fit, with these GPUs besides; if not, no round gives it any."""
        if self._loose_gpus + len(more) < demand.gang_gpus:
            return False
        only = more and demand.scope is Scope.MACHINE and not demand.members  # where these are
        free = {gpu.host: self.loose.get(gpu.host, 0) for gpu in more} if only else dict(self.loose)
        for gpu in more:
            free[gpu.host] = free.get(gpu.host, 0) + 1
        return fits_one_type(demand, free, self.a.holdings.topology, self.typed)

    # ---- wishes of an app with an Agent

    def _wish(self, kind: Kind, size: int, text: str, **changes: Any) -> Iterator[Change]:
        demand = replace(self.demand, **changes)
        if self._fits(demand) and demand.gang_gpus <= self.room_gpus:
            yield Change(kind, size, text, (ev.ProgressReported(self.app_id, demand, ()),))

    def _gangs(self) -> Iterator[Change]:
        d, part = self.demand, abs(self.demand.members[0]) if self.demand.members else 1
        for gpus in range(min((d.gang_gpus - 1) // part * part, self.a.cluster.machines.gpus // part * part), 0, -part):
            most = gpus if d.job_demand_max <= d.gang_gpus else d.job_demand_max
            text = f"with gangs of {count(gpus, 'GPU')} instead of {d.gang_gpus}"
            less, members = d.gang_gpus - gpus, d.members[: gpus // part]
            yield from self._wish(Kind.GANG, less, text, gang_gpus=gpus, job_demand_max=most, members=members)

    def _types(self) -> Iterator[Change]:
        d = self.demand
        if d.gpu_type:
            for other in self.a.holdings.topology.types:
                if other != d.gpu_type:
                    yield from self._wish(
                        Kind.TYPE, 1, f"on GPUs of type {other} instead of {d.gpu_type}", gpu_type=other
                    )
            yield from self._wish(Kind.TYPE, 2, "on GPUs of any one type", gpu_type="")
        if self.typed and not d.mixes and d.gang_gpus > 1 and len(self.a.holdings.topology.types) > 1:
            wider: dict[str, Any] = {"gpu_type": "", "mixes": True, "scope": Scope.CLUSTER}
            yield from self._wish(Kind.TYPE, 3, "with several GPU types in one gang", **wider)

    def _places(self) -> Iterator[Change]:
        d = self.demand
        if d.within:
            yield from self._wish(Kind.PLACE, 1, f"not within one {d.within}", within="")
        if d.pinned:
            yield from self._wish(Kind.PLACE, 1, f"outside the pinned cell {d.pinned}", pinned="")
        if d.opportunistic:
            yield from self._wish(Kind.PLACE, 1, "on its queue's own cells, not opportunistic", opportunistic=False)
        if d.members:
            yield from self._wish(Kind.PLACE, 1, f"without segments of {d.parts}", members=(), within="")
        for scope in (s for s in Scope if s > d.scope):
            text = f"with each gang {SCOPES[scope]} instead of {SCOPES[d.scope]}"
            yield from self._wish(Kind.PLACE, scope - d.scope, text, scope=scope)

    # ---- asks of an app without one

    def _asks(self) -> Iterator[Change]:
        """Fewer containers of a gang, else smaller containers."""
        a, asks = self.a, standin.open_asks(self.a.holdings, self.app_id)
        if standin.start_together(a.holdings, self.app_id):
            whole = sum(n for _, n in asks)
            for ask, n in asks:
                for fewer in range(1, n + (len(asks) > 1)):
                    tag = f"{tags.GANG}={whole - fewer}" if tags.tagged(self.app, tags.GANG) else tags.GANG
                    kept = frozenset(t for t in self.app.tags if t.partition("=")[0] != tags.GANG)
                    retagged = ev.AppUpdated(replace(self.app, tags=kept | {tag}))
                    text = f"with {count(whole - fewer, 'container')} in its gang instead of {whole}"
                    events = (retagged, *_asked(ask, count=ask.count - fewer))
                    yield Change(Kind.GANG, fewer * ask.gpus, text, events)
        else:
            for ask, _ in asks:
                for gpus in range(1, min(ask.gpus, self.a.holdings.topology.largest_gpus + 1)):
                    text = f"with containers of {count(gpus, 'GPU')} instead of {ask.gpus}"
                    yield Change(Kind.GANG, ask.gpus - gpus, text, _asked(ask, gpus=gpus))

    def _no_terms(self) -> Iterator[Change]:
        """Asks without a strict locality, or for another node label that its queue may use."""
        queue = self.a.cluster.queues.get(self.record.queue)
        for ask, _ in standin.open_asks(self.a.holdings, self.app_id):
            if ask.only_on:
                text = f"not only on {', '.join(ask.only_on)}"
                yield Change(Kind.PLACE, 1, text, _asked(ask, only_on=()))
            mine, _ = standin.terms(self.a.holdings, ask)
            for label in sorted({*(queue.partitions if queue else ()), ""} - {mine}):
                text = f"on machines with the label {label}" if label else "on machines without a label"
                yield Change(Kind.PLACE, 1, text, _asked(ask, partition=label))

    # ---- the others

    def _queues(self) -> Iterator[Change]:
        """Leaf queues; first those in which its user has apps."""
        a, user = self.a, self.record.user
        known = {x.queue for x in a.durable.live.values() if x.user == user}
        for q in sorted(a.cluster.queues.values(), key=lambda q: (q.path not in known, q.path)):
            if q.leaf and not q.stopped and not q.unmanaged and q.path != self.record.queue:
                may = "" if q.path in known else ", if YARN lets its user submit there"
                text = f"in the queue {q.path}{may}"
                yield Change(Kind.QUEUE, 1, text, (ev.AppUpdated(replace(self.app, queue=q.path)),))

    def _ends(self) -> Iterator[Change]:
        a, gone_of = self.a, dict[str, list[ev.Event]]()
        for c in a.cluster.containers.values():
            gone_of.setdefault(c.app_id, []).append(ev.ContainerGone(c.container_id))
        helps = self._fits(self.demand)
        for app_id in a.durable.live:
            gpus = list(dict.fromkeys(gpus_in(a.durable.claims_of(app_id))))
            if app_id != self.app_id and gpus and (helps or self._fits(self.demand, gpus)):
                gone = gone_of.get(app_id, [])
                text = f"if {APP} ended, which holds {count(len(gpus), 'GPU')}"
                yield Change(Kind.END, len(gpus), text, (*gone, ev.AppRemoved(app_id)), app_id)

    def _leases(self) -> Iterator[Change]:
        a, helps = self.a, self._fits(self.demand)
        for app_id in a.durable.live:
            for gang in a.holdings.gangs_of(app_id) if app_id != self.app_id else ():
                gpus = gpus_in(gang)
                if helps or self._fits(self.demand, gpus):
                    end_s = min(x.end_s for x in gang)
                    due_s = None if end_s == math.inf else end_s
                    text = f"if {APP} gave {count(len(gpus), 'GPU')} of one gang back"
                    yield Change(Kind.LEASE, len(gpus), text, self._given_back(app_id, gang), app_id, due_s)

    def _given_back(self, app_id: str, gang: Sequence[Lease]) -> tuple[ev.Event, ...]:
        """Its containers end and, of an app with an Agent, the job that had the gang: else it would want it again."""
        gpus, agent = gpus_in(gang), self.a.agents.get(app_id)
        ids = dict.fromkeys(filter(None, (self.a.cluster.container_at.get(gpu) for gpu in gpus)))
        gone = tuple(ev.ContainerGone(x) for x in ids)
        if agent is None:
            return gone
        left = replace(agent.demand, gangs=max(0, agent.demand.gangs - max(1, len(gpus) // agent.demand.gang_gpus)))
        return (*gone, ev.ProgressReported(app_id, left, ()), ev.GpusReleased(app_id, frozenset(gpus)))

    def _nodes(self) -> Iterator[Change]:
        a = self.a
        for n in self.scene.away:
            text = f"if the machine {n.host} came back with its {count(n.gpus, 'GPU')}"
            yield Change(Kind.NODE, n.gpus, text, (ev.NodeUp(n),))
        avoided = a.cluster.refusals.avoided(self.app_id)
        for n in a.cluster.nodes.values():
            clean = replace(n, bad_gpus=frozenset(), decommissioning=False, withheld="", untagged_gpus=0)
            ill = self._ill(n, n.host in avoided)
            if ill:
                undrain = (ev.OperatorCommand("undrain", n.host),) if DRAINED + n.host in a.durable.switches else ()
                size = n.gpus - a.gpus.usable.get(n.host, 0) or n.gpus
                text = f"if the machine {n.host} were in use, {ill}"
                yield Change(Kind.NODE, size, text, (*undrain, ev.NodeUp(clean)))

    def _ill(self, n: Node, avoided: bool) -> str:
        """What keeps a machine from use, or a part of it; empty if nothing does."""
        bad, said = len(n.bad_gpus), []
        said += [f"of which {count(bad, 'GPU')} {'is' if bad == 1 else 'are'} bad"] if bad else []
        said += ["which the operator drains"] if DRAINED + n.host in self.a.durable.switches else []
        said += ["which YARN decommissions"] if n.decommissioning else []
        said += ["which takes no new containers"] if n.withheld or n.untagged_gpus else []
        return " and ".join(said or (["which refused its containers"] if avoided else []))

    def _limits(self) -> Iterator[Change]:
        """Higher limits of its queue, and of each account that its gang has no room in."""
        if not self._fits(self.demand):
            return
        yield from self._queue_limits()
        for name, room in self.a.holdings.limits.rooms(self.record, self.scene.now_s).items():
            if room < self.demand.gang_gpus:
                yield from self._accounts(name)

    def _queue_limits(self) -> Iterator[Change]:
        """Higher limits of its queue, those above and its user there, in its partition: of all that have no room."""
        h, now = self.a.holdings, self.scene.cluster
        rooms, at = h.queue_rooms(self.app_id), h.partition_of(self.app_id)
        total, least = h.topology.gpus_in.get(at, 0), min(rooms.values(), default=0)
        *_, user = places(self.record.queue, self.record.user, at)
        for more in range(max(1, self.demand.gang_gpus - int(self.room_gpus)), total + 1) if rooms else ():
            queues, said = {q.path: q for q in now.queues}, []
            for name, room in rooms.items():
                if (rise := more + least - room) > 0:
                    path = self.record.queue if name == user else name.removesuffix(f" in partition {at}")
                    queues[path], most = _raised(queues[path], at, rise, total, name == user)
                    of = name if name == user else f"the queue {name}"
                    said.append(f"the limit of {of} rose from {most} to {count(most + rise, 'GPU')}")
            text = f"if {' and '.join(said)}"
            yield Change(Kind.LIMIT, more, text, (replace(now, queues=tuple(queues.values())),))

    def _accounts(self, name: str) -> Iterator[Change]:
        """A higher limit of an account: of its GPUs, or of each budget that is used up."""
        limits, total = self.a.holdings.limits, self.a.cluster.machines.gpus
        now = {k: x for k, x in asdict(limits.in_force[name]).items() if x is not None}
        used_up = (x for x in limits.levels(name, self.scene.now_s) if x.ends_s is not None and x.share >= 1)
        spent = {x.kind: x.used + self.demand.gang_gpus for x in used_up}
        rose = " and ".join(f"{kind} of {name} rose above {now[kind]:g}" for kind in spent)
        if spent:
            yield self._raised(name, self.demand.gang_gpus, f"if {rose}", {**now, **spent})
        for gpus in range(int(now["gpus"]) + 1, total + 1) if "gpus" in now else ():
            text = f"if the limit of {name} rose from {now['gpus']:g} to {count(gpus, 'GPU')}" + (
                f", and {rose}" if spent else ""
            )
            yield self._raised(name, gpus - int(now["gpus"]), text, {**now, **spent, "gpus": gpus})

    def _raised(self, name: str, size: int, text: str, values: Mapping[str, float]) -> Change:
        return Change(Kind.LIMIT, size, text, (ev.OperatorCommand(SET_LIMITS, name, "", values=dict(values)),))


def _smallest_first(changes: Iterator[Change]) -> Iterator[Change]:
    yield from sorted(changes, key=lambda c: (c.size, c.due_s or math.inf, c.app_id, c.text))


def _raised(q: Queue, at: str, rise: int, total: int, of_user: bool) -> tuple[Queue, int]:
    """The queue with a higher maximum (or limit of each user) of a partition's GPUs, and what that was."""
    share = q.share(at)
    if of_user:
        now = int(q.user_limit_factor * share.capacity * total + 1e-9)
        return replace(q, user_limit_factor=(now + rise) / max(1e-9, share.capacity * total)), now
    now = int(share.max_capacity * total + 1e-9)
    most = min(1.0, (now + rise) / total)
    partitions = {**q.partitions, at: replace(share, max_capacity=most)}
    return replace(q, partitions=partitions) if at else replace(q, max_capacity=most), now


def _asked(ask: Ask, **changes: Any) -> tuple[ev.Event, ...]:
    """The ask withdrawn, and made anew with changes."""
    return ev.AskChanged(replace(ask, count=0)), ev.AskChanged(replace(ask, **changes))


# ---- the search


def why_not(scene: Scene, app_id: str, budget_s: float = BUDGET_S) -> dict[str, Any]:
    """The answer, as JSON values; see docs/why-not.md. The main function of a process with one thread."""
    begin_s = time.monotonic()
    stage = Stage(scene)
    a, rows, gets, played, complete = stage.a, list[dict[str, Any]](), None, 0, False
    known = app_id in a.durable.live and app_id in a.cluster.apps
    if known and stage.exact and not leases.suspended(a.holdings, scene.now_s):
        play = Children(stage, app_id, begin_s + budget_s)
        gets, complete = play(()), True
        if gets is None:
            found, played, complete = search(Changes(a, scene, app_id).by_kind(), play, begin_s + budget_s)
            rows = [as_json(c, x) for c, x in found]
            complete = complete and play.in_time
        played += 1
        gc.unfreeze()
    code, text = Reasons(a, scene.now_s).told(app_id)
    said = {"reason": {"code": code, "sentence": text}, "gets": gets and asdict(gets), "changes": rows}
    return {**said, "played": played, "complete": complete, "took_s": time.monotonic() - begin_s}


def search(
    kinds: Mapping[Kind, Iterator[Change]], play: Play, until_s: float = math.inf
) -> tuple[list[tuple[Change, Gets]], int, bool]:
    """(the smallest change of each kind that helps, how many were played, whether time was enough for all).

    The kinds take turns, so that one with many changes that do not help does not use up the time. In each, sizes that
    grow by a third come first, and those between only then: where time is short, large changes are tried, too.
    """
    found: dict[Kind, tuple[Change, Gets]] = {}
    played = 0

    def turns(kind: Kind, changes: Iterator[Change]) -> Iterator[Change]:
        least, between = 0, list[Change]()
        for change in changes:
            if change.size < least:
                between.append(change)
            else:
                least = max(change.size + 1, change.size * 4 // 3)
                yield change
                if kind in found:
                    break
        yield from (x for x in between if kind not in found or x.size < found[kind][0].size)

    left = {kind: turns(kind, changes) for kind, changes in kinds.items()}
    while left:
        for kind, changes in list(left.items()):
            change = next(changes, None)
            if change is None:
                del left[kind]
                continue
            if time.monotonic() >= until_s:
                return [found[k] for k in kinds if k in found], played, False
            gets, played = play(change.events), played + 1
            if gets is not None:
                found[kind] = change, gets
    return [found[k] for k in kinds if k in found], played, True


class Children:
    """Plays changes in child processes, which are copies of this one, so that the stage is built once.

    For a process with one thread.
    """

    def __init__(self, stage: Stage, app_id: str, until_s: float) -> None:
        self._stage, self._app_id, self._until_s = stage, app_id, until_s
        self.in_time = True
        """Whether no child had to be ended."""
        gc.freeze()  # else the first collection in each child would copy all memory

    def __call__(self, events: Sequence[ev.Event]) -> Gets | None:
        """What the app gets; None also where the child fails or takes too long."""
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(theirs, pickle.dumps(self._stage.play(self._app_id, events)))
            finally:
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            if not select.select([pipe], [], [], max(0.0, self._until_s - time.monotonic()))[0]:
                os.kill(child, signal.SIGKILL)
                self.in_time = False
            said = pipe.read()
        os.waitpid(child, 0)
        return pickle.loads(said) if said else None


def as_json(c: Change, gets: Gets) -> dict[str, Any]:
    """A change and what it gives, as JSON values."""
    return {"kind": c.kind, "size": c.size, "text": c.text, "app_id": c.app_id, "due_s": c.due_s, "gets": asdict(gets)}


# ---- words


def gets_text(gets: Mapping[str, Any], now_s: float) -> str:
    """Which GPUs, on what terms, from when."""
    gpus, borrowed, wait_s = sum(gets["gpus"].values()), gets["borrowed_gpus"], gets["from_s"] - now_s
    where = ", ".join(f"{n} on {host}" for host, n in sorted(gets["gpus"].items()))
    terms = "" if not borrowed else ", borrowed" if borrowed == gpus else f", {borrowed} of them borrowed"
    return f"{count(gpus, 'GPU')} ({where}{terms}) {'at once' if wait_s < 1 else f'in {span(wait_s)}'}"


def sentence(change: Mapping[str, Any], app: str, now_s: float) -> str:
    """One change for people; `app`: how the other app is called."""
    due_s, text, due = change["due_s"], change["text"].replace(APP, app), ""
    if due_s is not None:
        what = "its lease ends" if change["kind"] == Kind.LEASE else "expected"
        due = f" ({what} in {span(max(0.0, due_s - now_s))})"
    return f"{text}{due}: {gets_text(change['gets'], now_s)}"
