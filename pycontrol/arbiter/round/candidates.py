"""The apps that may take part in a round, and the policy's views of them; `Round.out` says why others do not."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pycontrol.arbiter import apps
from pycontrol.arbiter.boosts import boost_of
from pycontrol.arbiter.ledger.lease import Lease, gpus_in
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.eligibility import demand_of, shape_of, within_cluster
from pycontrol.arbiter.round.round import Round
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply.port import RoundPart
from pycontrol.model.auction import BOOSTED, AppView, Demand
from pycontrol.model.reasons import Pending, Reason

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

    def __init__(self, state: State) -> None:
        self.s = state
        self._aside: dict[str, tuple[float, str]] = {}
        """App that takes no part -> (until when, why)."""
        self._waiting: dict[str, dict[str, AppView]] = {}
        """Virtual cluster -> app with an Agent that wants more -> its view; for policies that do not ask Agents."""
        self._moving: dict[str, str] = {}
        """App -> its virtual cluster, for views that change with time: the app holds GPUs or counts for a limit."""
        self._alike: dict[str, dict[_Alike, dict[str, None]]] = {}
        """Virtual cluster -> apps with gangs alike."""
        self._gpus = 0
        """The size of the cluster, which limits demands, in the views."""

    # ---- one app

    def forget(self, app_id: str) -> None:
        """Drops what is known of an application that YARN has removed."""
        self._aside.pop(app_id, None)
        self._drop(app_id)

    def wanting(self) -> list[str]:
        """Apps that could use more GPUs than they hold."""
        return [*self.s.agents.unmet, *(a for a in self.s.agents.unmanaged_apps if standin.waits(self.s, a))]

    def set_aside(self, r: Round | None, bad: Mapping[str, str], now_s: float) -> None:
        """Excludes apps for ASIDE_S that made the policy fail (app -> why): finding them takes many decisions."""
        for app_id, why in bad.items():
            if app_id in self.s.durable.live:
                self._aside[app_id] = (now_s + ASIDE_S, why)
            if r is not None:
                r.out[app_id] = Reason(Pending.BAD_REPORT, why)

    def left_out(self, r: Round, app_id: str, now_s: float) -> bool:
        """Whether an app takes no part, and notes why: it is set aside, or could use nothing of the offer.

        An app with gangs on offer takes part unless it is set aside.
        """
        until_s, failure = self._aside.get(app_id, (0.0, ""))
        if now_s < until_s:
            r.out[app_id] = Reason(Pending.BAD_REPORT, failure)
            return True
        self._aside.pop(app_id, None)
        if app_id in r.ending:
            return False
        why = r.openings.why_out(app_id, r.openings.demand(app_id, r.offered, now_s), r.offered)
        if why is not None:
            r.out[app_id] = why
        return why is not None

    def stand_in(self, r: Round, app_id: str, now_s: float) -> None:
        """Sets the rho of an unmanaged app in a round."""
        s = self.s
        apps.note_demand(s, app_id, demand_of(s, app_id, now_s).gpus)
        r.rho[app_id] = standin.rho(s, app_id, s.holding(app_id) - len(r.ending_gpus(app_id)), now_s)

    # ---- the apps of a round

    def views(self, r: Round, now_s: float) -> dict[str, AppView]:
        """App -> its view, for the apps of the round; apps that were asked for rho and did not answer are left out."""
        s, part = self.s, r.part
        views: dict[str, AppView] = {}
        if r.policy.asks_agents:
            for app_id in (a for a in r.rho if a not in r.out and a in s.durable.live):
                demand = r.openings.demand(app_id, r.offered, now_s)
                views[app_id] = view(s, app_id, r.rho[app_id], r.ending.get(app_id, ()), now_s, part, demand)
            return views
        for app_id, gangs in r.ending.items():
            agent = s.agents.get(app_id)
            if agent is not None and agent.connected:
                views[app_id] = view(s, app_id, agent.rho, gangs, now_s, part)
            elif app_id not in s.agents.unmanaged_apps:
                r.out[app_id] = NOT_CONNECTED
        views.update(self._that_wait(r, now_s))
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
                wants = r.openings.demand(app_id, r.offered, now_s)
                views[app_id] = view(s, app_id, r.rho[app_id], r.ending.get(app_id, ()), now_s, part, wants)
                others.append(app_id)
        for app_id in others:
            admitted = app_id in r.ending or (app_id not in part.without and part.admits(views[app_id].demand))
            if not admitted or self.left_out(r, app_id, now_s):
                del views[app_id]
        return views

    def _that_wait(self, r: Round, now_s: float) -> dict[str, AppView]:
        """Views of the apps with Agents that wait, hold nothing that is on offer, and could use some of the offer."""
        part, found = r.part, self._up_to_date(r.part, now_s)
        for app_id in (*r.ending, *part.without):
            found.pop(app_id, None)
        if not r.openings.rules.alike:
            return {a: v for a, v in found.items() if part.admits(v.demand) and not self.left_out(r, a, now_s)}
        for app_id in [a for a in self._aside if a in found]:
            if part.admits(found[app_id].demand) and self.left_out(r, app_id, now_s):
                del found[app_id]
        for mine in self._alike.get(part.vc, {}).values():
            first = next(iter(mine))
            demand = self._waiting[part.vc][first].demand
            admitted = part.admits(demand)
            why = r.openings.why_out(first, demand, r.offered) if admitted else None
            if not admitted or why is not None:
                gone = [a for a in mine if found.pop(a, None) is not None]
                r.out.update((a, why) for a in gone if why is not None)
        return found

    def present(self, part: RoundPart) -> frozenset[str]:
        """The active apps that share the part."""
        return frozenset(a for a, app in self.s.durable.live.items() if app.vc == part.vc)

    def ended(self, memory: Mapping[str, Any], present: frozenset[str], now_s: float) -> dict[str, float]:
        """App -> attained service (GPU-s), for apps that the policy remembers and that are gone."""
        known = self.s.durable.apps
        gone = (a for a in memory.get("apps", ()) if a not in present)
        return {a: self.s.attained_gpu_s(a, now_s) for a in gone if a in known}

    # ---- the table

    def _up_to_date(self, part: RoundPart, now_s: float) -> dict[str, AppView]:
        """A copy of the views of the virtual cluster's waiting apps, as they are now."""
        s = self.s
        for app_id in list(s.agents.stale):
            self._refresh(app_id, now_s)
        if self._gpus != s.cluster.machines.gpus:
            self._gpus = s.cluster.machines.gpus
            for views in self._waiting.values():
                views.update((a, _resized(s, v)) for a, v in views.items())
        mine = self._waiting.get(part.vc, {})
        for app_id, whose in self._moving.items():
            if whose == part.vc:
                mine[app_id] = view(s, app_id, s.agents[app_id].rho, (), now_s, part)
        return dict(mine)

    def _refresh(self, app_id: str, now_s: float) -> None:
        s = self.s
        self._drop(app_id)
        app, agent = s.durable.apps.get(app_id), s.agents.get(app_id)
        if app is None or app_id not in s.agents.unmet or agent is None or not agent.connected:
            return
        fresh = view(s, app_id, agent.rho, (), now_s)
        if s.holding(app_id) or app_id in s.durable.leases.by_app or fresh.rooms:
            self._moving[app_id] = app.vc
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
            if app_id in s.agents.stale or app_id in self._moving or self._gpus != s.cluster.machines.gpus:
                continue
            if operator.ne(known, view(s, app_id, s.agents[app_id].rho, (), s.event_s)):  # compiled, `!=` is `is not`
                yield app_id, "its view is outdated, and nothing says that it changed"


def view(
    s: State,
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
    app = s.durable.apps[app_id]
    ending_gpus = frozenset(gpu for gang in ending for gpu in gpus_in(gang))
    private = part is not None and part.owner is not None
    borrowed = s.borrowing(app_id) if private else 0
    wants = demand or demand_of(s, app_id, now_s)
    return AppView(
        app_id=app_id,
        queue=app.queue,
        rho=rho,
        demand=wants,
        ending=ending_gpus,
        ending_gangs=tuple(s.places(gpus_in(gang), private) for gang in ending),
        retained_gpus=s.holding(app_id) - borrowed - len(ending_gpus),
        rooms={name: room + borrowed + len(ending_gpus) for name, room in s.rooms(app_id, now_s).items()},
        submitted_s=app.submitted_s,
        user=app.user,
        attained_gpu_s=s.attained_gpu_s(app_id, now_s),
        slowed_gpu_s=s.slowed_gpu_s(app_id, now_s),
        launching_gpu_s=s.launching_gpu_s(app_id, now_s),
        revoked_gpus=app.revocations,
        retained_gangs=s.retained_gangs(app_id, ending_gpus, private),
        priority=_priority(s, app_id, app.vc),
        spared=wants.unsaved and s.settings.unsaved_last,
    )


def _priority(s: State, app_id: str, vc: str) -> int:
    app = s.cluster.apps.get(app_id) if vc else None
    boost = BOOSTED if boost_of(s, app_id) is not None else 0
    return boost + (app.priority if app is not None else 0)


def _alike(demand: Demand) -> _Alike:
    return *shape_of(demand), demand.pinned, demand.within, demand.opportunistic


def _resized(s: State, known: AppView) -> AppView:
    """The view with the demand limited to what the cluster can hold now."""
    demand = within_cluster(s, known.app_id, s.agents[known.app_id].demand)
    return known if demand.gangs == known.demand.gangs else replace(known, demand=demand)
