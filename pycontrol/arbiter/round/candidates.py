"""A round under way: the apps that may take part, the policy's views of them, and why others do not (`Round.out`)."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pycontrol.arbiter.ledger.lease import Lease, gpus_in
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.eligibility import Openings, demand_of, shape_of, within_cluster
from pycontrol.arbiter.round.parts import RoundParts
from pycontrol.arbiter.state import Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart, deals_of
from pycontrol.model.auction import BOOSTED, AppView, Bid, Demand, Snapshot
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.receipt import Outcome, Receipt
from pycontrol.model.topology import Gpu
from pycontrol.policies.policy_port import Policy


class RoundPhase(enum.StrEnum):
    """What a round waits for: rho, bids or the plan."""

    RHO = "rho"
    BIDS = "bids"
    PLAN = "plan"


@dataclass
class Round:
    """A round under way."""

    round_id: str
    at_s: float
    ending: dict[str, list[list[Lease]]]
    """App -> its gangs on offer."""
    part: RoundPart
    parts: RoundParts
    """All parts of the same moment."""
    policy: Policy
    openings: Openings
    phase: RoundPhase = RoundPhase.RHO
    deadline_s: float = 0.0
    """The end of the present wait."""
    rho: dict[str, float | None] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    """Apps with Agents that it waits for."""
    out: dict[str, Reason] = field(default_factory=dict)
    """App -> why it takes no part."""
    snapshot: Snapshot | None = None
    views: dict[str, AppView] = field(default_factory=dict)
    bids: dict[str, Bid] = field(default_factory=dict)
    offered_at_s: float = 0.0
    bid_s: dict[str, float] = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    corrected: dict[str, str] = field(default_factory=dict)
    """App -> which of its Agent's figures were replaced by what was seen."""
    seed: int = 0
    since_s: dict[str, float] = field(default_factory=dict)
    """App -> since when it wants more than it holds; noted at the start, as a grant may satisfy it."""

    @property
    def memory_key(self) -> str:
        """The key of the policy's memory; a virtual cluster's own and borrowed GPUs have separate ones."""
        return self.part.vc if self.part.guaranteed else f"{self.part.vc} (borrowed)"

    def note_corrected(self, app_id: str, what: str) -> None:
        """Notes which of an Agent's figures were replaced; empty: none."""
        if what:
            self.corrected[app_id] = "; ".join(filter(None, (self.corrected.get(app_id), what)))

    def leave_out(self) -> None:
        """Removes apps in `out` from the snapshot, so that they get neither leftovers nor GPUs of the last pass."""
        if self.out and self.snapshot is not None:
            self.snapshot = replace(
                self.snapshot, apps=tuple(v for v in self.snapshot.apps if v.app_id not in self.out)
            )

    def late(self, code: Pending, what: str) -> None:
        """Ends the wait: the apps that did not answer are out, with this reason."""
        for app_id in self.waiting:
            self.out[app_id] = Reason(code, what)
        self.waiting.clear()

    def ending_gpus(self, app_id: str) -> tuple[Gpu, ...]:
        """The app's GPUs on offer."""
        gangs = self.ending.get(app_id)
        return tuple(sorted(gpu for gang in gangs for gpu in gpus_in(gang))) if gangs else ()


def receipt(s: Holdings, r: Round, outcome: Outcome | None, note: str) -> Receipt:
    """The receipt of a round; `outcome` is None if the round was given up."""
    granted = {g.app_id for g in outcome.granted} if outcome is not None else ()
    return Receipt(
        round_id=r.round_id,
        at_s=r.at_s,
        policy=r.policy.name,
        asked=r.policy.asks_agents,
        vc=r.part.vc,
        guaranteed=r.part.guaranteed,
        deals=tuple(deals_of(s.durable.exchange, r.part.vc)),
        cluster_gpus=s.gpus_of(r.part.vc),
        offered=r.part.by_host(r.part.free),
        bad_gpus=tuple(s.cluster.machines.bad_gpus),
        ending={app_id: r.ending_gpus(app_id) for app_id in r.ending},
        rho=dict(r.rho),
        participants=tuple(r.participants),
        out=dict(r.out),
        bid_s=dict(r.bid_s),
        restart_s={app_id: b.restart_s for app_id, b in r.bids.items() if not b.rows},
        asked_s={app_id: r.since_s[app_id] for app_id in granted if app_id in r.since_s},
        corrected=dict(r.corrected),
        boosted={a: by.user for a in r.views if (by := s.boost_of(a)) is not None} if s.durable.boosts else {},
        f=s.f_of(r.part.vc),
        min_lend_s=s.supply.terms(r.part.vc).min_lend_s,
        note=note,
        outcome=outcome,
    )


REMEMBERED_BY = "remembered_by"
"""In a policy's memory: the name of the policy, so that no other policy reads it."""


def remembered(s: Holdings, key: str, policy: str) -> dict[str, Any]:
    """The memory of the policy of this name; empty if another policy wrote it. Old journals do not name the policy."""
    kept, bare = s.durable.memory, key.removeprefix("root.")  # the cells file may have named it either way before
    memory = dict(kept.get(key) or kept.get(bare) or kept.get(f"root.{bare}", {}))
    return memory if memory.pop(REMEMBERED_BY, policy) == policy else {}


ASIDE_S = 300.0
"""How long an app with numbers that made the policy fail takes no part."""
NOT_CONNECTED = Reason(Pending.AGENT_AWAY, "its Agent is not connected")
_Alike = tuple[object, ...]
"""What decides whether a part of a round is for an app: its gangs' shape, and which cells it wishes."""


class Candidates:
    """The apps that may take part in rounds.

    Views of apps that wait with an Agent stand until the app changes (`AgentsView.stale`), and whether they may start
    on an offer is asked once for all with gangs alike. So a round costs the apps that change, not those that wait.
    """

    def __init__(self, s: Holdings) -> None:
        self.s = s
        self.aside: dict[str, tuple[float, str]] = {}
        """App that takes no part -> (until when, why)."""
        self._waiting: dict[str, dict[str, AppView]] = {}
        """Virtual cluster -> app with an Agent that wants more -> its view; for policies that do not ask Agents."""
        self._moving: dict[str, bool] = {}
        """App whose view changes with time -> whether it holds GPUs; else it counts for a limit, and what that leaves
        changes."""
        self._alike: dict[str, dict[_Alike, dict[str, None]]] = {}
        """Virtual cluster -> apps with gangs alike."""
        self._gpus = 0
        """The size of the cluster, which limits demands, in the views."""

    # ---- one app

    def forget(self, app_id: str) -> None:
        """Drops what is known of an application that YARN has removed."""
        self.aside.pop(app_id, None)
        self._drop(app_id)

    def wanting(self) -> Iterator[str]:
        """Apps that could use more GPUs than they hold, one by one, as often the first is enough."""
        yield from self.s.agents.unmet
        yield from (a for a in self.s.agents.unmanaged_apps if standin.waits(self.s, a))

    def set_aside(self, r: Round | None, bad: Mapping[str, str], now_s: float) -> None:
        """Excludes apps for ASIDE_S that made the policy fail (app -> why): finding them takes many decisions."""
        for app_id, why in bad.items():
            if app_id in self.s.durable.live:
                self.aside[app_id] = (now_s + ASIDE_S, why)
            if r is not None:
                r.out[app_id] = Reason(Pending.BAD_REPORT, why)

    def left_out(self, r: Round, app_id: str, now_s: float) -> bool:
        """Whether an app takes no part, and notes why: it is set aside, or could use nothing of the offer.

        An app with gangs on offer takes part unless it is set aside.
        """
        until_s, failure = self.aside.get(app_id, (0.0, ""))
        if now_s < until_s:
            r.out[app_id] = Reason(Pending.BAD_REPORT, failure)
            return True
        self.aside.pop(app_id, None)
        if app_id in r.ending:
            return False
        why = r.openings.why_out(app_id, r.openings.demand(app_id, r.part.free, now_s), r.part.free)
        if why is not None:
            r.out[app_id] = why
        return why is not None

    def stand_in(self, r: Round, app_id: str, now_s: float) -> None:
        """Sets the rho of an unmanaged app in a round."""
        s = self.s
        s.ledger.note_demand(app_id, demand_of(s, app_id, now_s).gpus)
        r.rho[app_id] = standin.rho(s, app_id, s.holding(app_id) - len(r.ending_gpus(app_id)), now_s)

    # ---- the apps of a round

    def views(self, r: Round, now_s: float) -> dict[str, AppView]:
        """App -> its view, for the apps of the round; apps that were asked for rho and did not answer are left out."""
        s, part = self.s, r.part
        views: dict[str, AppView] = {}
        if r.policy.asks_agents:
            for app_id in (a for a in r.rho if a not in r.out and a in s.durable.live):
                demand = r.openings.demand(app_id, r.part.free, now_s)
                views[app_id] = view(s, app_id, r.rho[app_id], r.ending.get(app_id, ()), now_s, part, demand)
            return views
        for app_id, gangs in r.ending.items():
            agent = s.agents.get(app_id)
            if agent is not None and agent.connected:
                views[app_id] = view(s, app_id, agent.rho, gangs, now_s, part)
            elif app_id not in s.agents.unmanaged_apps:
                r.out[app_id] = NOT_CONNECTED
        for app_id, known in self._that_wait(r, now_s).items():
            if self._moving.get(app_id):
                known = view(s, app_id, s.agents[app_id].rho, (), now_s, part)
            elif app_id in self._moving and (rooms := s.rooms(app_id, now_s)) != known.rooms:
                known = replace(known, rooms=rooms)
            views[app_id] = known
        others, borrowing = [a for a in r.ending if a in views], r.parts.borrowers_of(part)
        for app_id in borrowing:
            agent = s.agents.get(app_id)
            waits = app_id in self._waiting.get(part.vc, ())
            if agent is not None and agent.connected and app_id not in views and not waits:
                views[app_id] = view(s, app_id, agent.rho, (), now_s, part)
                others.append(app_id)
        for app_id in s.agents.unmanaged_apps:
            if s.durable.apps[app_id].vc != part.vc:
                continue
            if app_id in r.ending or app_id in borrowing or standin.waits(s, app_id):
                self.stand_in(r, app_id, now_s)
                wants = r.openings.demand(app_id, r.part.free, now_s)
                views[app_id] = view(s, app_id, r.rho[app_id], r.ending.get(app_id, ()), now_s, part, wants)
                others.append(app_id)
        for app_id in others:
            admitted = app_id in r.ending or (app_id not in part.without and part.admits(views[app_id].demand))
            if not admitted or self.left_out(r, app_id, now_s):
                del views[app_id]
        return views

    def _that_wait(self, r: Round, now_s: float) -> dict[str, AppView]:
        """Views of the apps with Agents that wait, hold nothing that is on offer, and could use some of the offer."""
        part, found = r.part, self._known(r.part.vc, now_s)
        for app_id in (*r.ending, *part.without):
            found.pop(app_id, None)
        if not r.openings.rules.alike:
            return {a: v for a, v in found.items() if part.admits(v.demand) and not self.left_out(r, a, now_s)}
        for app_id in [a for a in self.aside if a in found]:
            if part.admits(found[app_id].demand) and self.left_out(r, app_id, now_s):
                del found[app_id]
        for mine in self._alike.get(part.vc, {}).values():
            first = next(iter(mine))
            demand = self._waiting[part.vc][first].demand
            admitted = part.admits(demand)
            why = r.openings.why_out(first, demand, r.part.free) if admitted else None
            if not admitted or why is not None:
                gone = [a for a in mine if found.pop(a, None) is not None]
                r.out.update((a, why) for a in gone if why is not None)
        return found

    def present(self, part: RoundPart) -> frozenset[str]:
        """The active apps that share the part."""
        live = self.s.durable.live
        return frozenset(live if self.s.supply.whole else (a for a, app in live.items() if app.vc == part.vc))

    def ended(self, memory: Mapping[str, Any], present: frozenset[str], now_s: float) -> dict[str, float]:
        """App -> attained service (GPU-s), for apps that the policy remembers and that are gone."""
        known = self.s.durable.apps
        gone = (a for a in memory.get("apps", ()) if a not in present)
        return {a: self.s.durable.attained_gpu_s(a, now_s) for a in gone if a in known}

    # ---- the table

    def _known(self, vc: str, now_s: float) -> dict[str, AppView]:
        """A copy of the views of the virtual cluster's waiting apps; of those in `_moving`, of when they changed."""
        s = self.s
        for app_id in sorted(s.agents.stale):  # in one order in every process, as ties may be drawn
            self._refresh(app_id, now_s)
        if self._gpus != s.cluster.machines.gpus:
            self._gpus = s.cluster.machines.gpus
            for views in self._waiting.values():
                views.update((a, _resized(s, v)) for a, v in views.items())
        return dict(self._waiting.get(vc, {}))

    def _refresh(self, app_id: str, now_s: float) -> None:
        s = self.s
        self._drop(app_id)
        app, agent = s.durable.apps.get(app_id), s.agents.get(app_id)
        if app is None or app_id not in s.agents.unmet or agent is None or not agent.connected:
            return
        fresh = view(s, app_id, agent.rho, (), now_s)
        limited = bool(fresh.rooms or s.limits.of(app.queue, app.user))  # a budget has no room once it is used up
        if (holds := bool(s.holding(app_id) or app_id in s.durable.leases.by_app)) or limited:
            self._moving[app_id] = holds
        self._waiting.setdefault(app.vc, {})[app_id] = fresh
        self._alike.setdefault(app.vc, {}).setdefault(_alike(fresh.demand), {})[app_id] = None

    def _drop(self, app_id: str) -> None:
        self.s.agents.no_longer_changed(app_id)
        self._moving.pop(app_id, None)
        for vc, views in self._waiting.items():
            known = views.pop(app_id, None)
            if known is not None:
                alike, mine = _alike(known.demand), self._alike[vc]
                del mine[alike][app_id]
                if not mine[alike]:
                    del mine[alike]

    def validate(self) -> Iterator[tuple[str, str]]:
        """Yields (app, what is wrong) where the table is not what the apps that did not change since would make it."""
        s = self.s
        kept = {a: (vc, v) for vc, views in self._waiting.items() for a, v in views.items()}
        for app_id in (kept.keys() ^ {a for a in s.agents.unmet if s.agents[a].connected}) - s.agents.stale:
            yield app_id, "it waits and has no view, or has one and does not wait"
        for app_id, (vc, known) in kept.items():
            if app_id not in self._alike.get(vc, {}).get(_alike(known.demand), ()):
                yield app_id, "it is not among the apps like it"
            if app_id in s.agents.stale or self._moving.get(app_id) or self._gpus != s.cluster.machines.gpus:
                continue
            now = view(s, app_id, s.agents[app_id].rho, (), s.event_s)
            known = replace(known, rooms=now.rooms) if app_id in self._moving else known
            if operator.ne(known, now):  # compiled, `!=` is `is not`
                yield app_id, "its view is outdated, and nothing says that it changed"


def view(
    s: Holdings,
    app_id: str,
    rho: float | None,
    ending: Sequence[Sequence[Lease]],
    now_s: float,
    part: RoundPart | None = None,
    demand: Demand | None = None,
) -> AppView:
    """The view of one app.

    `ending`: its gangs on offer. `demand`: the demand with which it takes part; None: all that it wants.
    Where a virtual cluster shares out its own machines (`part`), borrowed GPUs do not count: a private cluster
    would not have them.
    """
    app, held = s.durable.apps[app_id], s.durable.leases.of(app_id)
    ending_gpus = frozenset(gpu for gang in ending for gpu in gpus_in(gang))
    private = part is not None and part.owner is not None
    borrowed = s.borrowing(app_id) if private else 0
    wants, unmanaged = demand or demand_of(s, app_id, now_s), app_id in s.agents.unmanaged_apps
    rooms, mine = s.rooms(app_id, now_s), borrowed + len(ending_gpus)
    return AppView(
        app_id=app_id,
        queue=app.queue,
        rho=rho,
        demand=wants,
        ending=ending_gpus,
        ending_gangs=tuple(s.places(gpus_in(gang), private) for gang in ending),
        unsaved_s=tuple(s.unsaved_s(gang) for gang in ending),
        retained_gpus=s.holding(app_id) - borrowed - len(ending_gpus),
        rooms={name: room + mine for name, room in rooms.items()} if rooms else rooms,
        submitted_s=app.submitted_s,
        user=app.user,
        attained_gpu_s=s.durable.attained_gpu_s(app_id, now_s),
        slowed_gpu_s=app.slowed_gpu_s + sum(x.slowed_gpu_s(now_s) for x in held),
        launching_gpu_s=app.launching_gpu_s + sum(s.durable.launching_gpu_s(x, now_s) for x in held),
        revoked_gpus=app.revocations,
        retained_gangs=s.retained_gangs(app_id, ending_gpus, private),
        priority=_priority(s, app_id, app.vc),
        new_gangs_max=(wants.gpus - s.holding(app_id) + borrowed) // wants.gang_gpus if unmanaged else 1 << 30,
    )


def _priority(s: Holdings, app_id: str, vc: str) -> int:
    app = s.cluster.apps.get(app_id) if vc else None
    boost = BOOSTED if s.boost_of(app_id) is not None else 0
    return boost + (app.priority if app is not None else 0)


def _alike(demand: Demand) -> _Alike:
    return *shape_of(demand), demand.pinned, demand.within, demand.opportunistic


def _resized(s: Holdings, known: AppView) -> AppView:
    """The view with the demand limited to what the cluster can hold now."""
    demand = within_cluster(s, known.app_id, s.agents[known.app_id].demand)
    return known if demand.gangs == known.demand.gangs else replace(known, demand=demand)
