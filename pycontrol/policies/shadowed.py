"""Any policy of a virtual cluster with the shadow of its private cluster: who is behind it goes first.

A request that the private cluster serves is served here, and yet a job may end later: what it borrowed changes the
order in which its own queue comes to its cells. So the schedule that the private cluster would have (`shadow.py`) is
kept beside the real one, and of each offer of the virtual cluster's own machines

1. apps that ended there and continue here have as many gangs as they had there,
2. apps that run there now have as many gangs as there, where they run, else where they run there,
3. apps that had done more there by now than here come next, who lacks most first,

and the policy shares out the rest as usual. All leases last to the next common end, however soon that is: at these ends
the private cluster takes GPUs back, and who comes first then is not to wait for one that began half a lease before.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pycontrol.model.auction import AppView, Award, Bid, Gang, Offer, Plan, Snapshot, gang_gpus
from pycontrol.policies.pool import Pool
from pycontrol.policies.port import Policy
from pycontrol.policies.shadow import Shadow, next_end_s

BEHIND = 1e-3
"""An app is behind if it lacks more than so much of its work."""


class NoShadow(ValueError):
    """The policy's decisions need Agents' bids, which a shadow has not."""


@dataclass(frozen=True)
class _First:
    """An app that goes before the policy's order, up to so many gangs; `places`: where they are in the shadow."""

    view: AppView
    gangs: int
    places: tuple[Gang, ...]
    why: str


@dataclass(frozen=True)
class Shadowed:
    """A policy with a shadow. On GPUs that a virtual cluster borrows it does as the policy does."""

    policy: Policy

    def __post_init__(self) -> None:
        if self.policy.asks_agents:
            raise NoShadow(f"shadow: {self.policy.name} asks Agents for bids, which a shadow has none of")

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.name

    @property
    def asks_agents(self) -> bool:
        """Never."""
        return False

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """Nobody is asked."""
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """First those behind the shadow, then the policy's plan for the rest."""
        if not snapshot.private:
            return self.policy.decide(snapshot, bids, rng)
        memory = snapshot.memory
        shadow = Shadow.load(memory.get("shadow", {}), snapshot.now_s)
        shadow.advance(snapshot, self.policy)
        next_leases = shadow.with_next_leases(snapshot, self.policy)
        got, why = _placed(_first(shadow, next_leases, snapshot), snapshot)
        rest = _without(replace(snapshot, memory=policy_memory(memory)), got)
        plan = self.policy.decide(rest, bids, rng)
        awards: dict[str, tuple[Gang, ...]] = {a: tuple(gangs) for a, gangs in got.items()}
        for award in plan.awards:
            awards[award.app_id] = (*awards.get(award.app_id, ()), *award.gangs)
        until_s = next_end_s(snapshot)
        return replace(
            plan,
            awards=tuple(Award(a, gangs, until_s=until_s) for a, gangs in awards.items()),
            why={**plan.why, **why},
            memory=_memory(shadow, plan.memory),
        )


def policy_memory(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the policy remembers, whether it has a shadow or not."""
    inner: Mapping[str, Any] = memory["policy"] if "shadow" in memory else memory
    return inner


def _memory(shadow: Shadow, inner: Mapping[str, Any]) -> dict[str, Any]:
    """Under `apps` those whose ends are to be told."""
    return {
        "shadow": shadow.dump(),
        "policy": inner,
        "apps": sorted({*shadow.apps, *inner.get("apps", ())}),
    }


def _first(shadow: Shadow, next_leases: Shadow, s: Snapshot) -> list[_First]:
    """Who goes first, in order."""
    overdue, mirrored, behind = [], [], []
    for v in s.apps:
        app = next_leases.apps[v.app_id]
        ahead = v.demand.work_done_gpu_s - shadow.done(v.app_id, s.now_s, s.topology)
        places = tuple(gang for gang, _ in app.gangs)
        if app.ended_s is not None:
            why = f"on its private cluster it would have ended {max(0.0, s.now_s - app.ended_s):.0f} s ago"
            overdue.append((app.ended_s, v.app_id, _First(v, max(1, app.width), (), why)))
        elif places:
            why = "on its private cluster it would run now"
            mirrored.append((app.submitted_s, v.app_id, _First(v, len(places), places, why)))
        elif -ahead > BEHIND * app.need:
            why = f"it is {-ahead:.0f} GPU-s behind its private cluster"
            behind.append((ahead, v.app_id, _First(v, max(1, app.width), (), why)))
    return [entry for group in (overdue, mirrored, behind) for *_, entry in sorted(group, key=lambda x: x[:2])]


def _placed(first: list[_First], s: Snapshot) -> tuple[dict[str, list[Gang]], dict[str, str]]:
    """Gangs for them. They stay where they run; only where that leaves one of them without room that somebody after it
    has do they go to where they are in the shadow, in which all of those that run there fit together."""
    staying = _fill(first, s, stay=True)
    moved = _fill(first, s, stay=False)
    served, otherwise = ([len(got.get(f.view.app_id, ())) for f in first] for got in (staying, moved))
    if otherwise > served:
        staying = moved
    return staying, {f.view.app_id: f.why for f in first if f.view.app_id in staying}


def _wanted(f: _First) -> int:
    """Gangs that it is to get of this offer."""
    return max(0, min(f.gangs, f.view.demand.gangs) - len(f.view.retained_gangs))


def _fill(first: list[_First], s: Snapshot, stay: bool) -> dict[str, list[Gang]]:
    pool = Pool(s.free, s.topology)
    got: dict[str, list[Gang]] = {}

    def take(f: _First, gangs: tuple[Gang, ...]) -> None:
        mine = got.setdefault(f.view.app_id, [])
        for gang in gangs:
            if len(mine) < _wanted(f) and gang not in f.view.retained_gangs and pool.holds(gang):
                pool.take(gang)
                mine.append(gang)

    for f in first if stay else ():
        take(f, f.view.ending_gangs)
    for f in first:
        take(f, f.places)
        take(f, () if stay else f.view.ending_gangs)
        d, mine = f.view.demand, got.setdefault(f.view.app_id, [])
        while len(mine) < _wanted(f):
            gang = pool.place(d.gang_gpus, d.scope, d.gpu_type, d.members)
            if gang is None:
                break
            pool.take(gang)
            mine.append(gang)
    return {app_id: gangs for app_id, gangs in got.items() if gangs}


def _without(s: Snapshot, got: Mapping[str, list[Gang]]) -> Snapshot:
    """The offer without what is given already, its owners holding it."""
    free = dict(s.free)
    for gangs in got.values():
        for host, n in (part for gang in gangs for part in gang):
            free[host] -= n
    views = tuple(_holding(v, got[v.app_id]) if v.app_id in got else v for v in s.apps)
    return replace(s, free={host: n for host, n in free.items() if n > 0}, apps=views)


def _holding(v: AppView, gangs: list[Gang]) -> AppView:
    left = list(v.ending_gangs)
    for gang in gangs:
        if gang in left:
            left.remove(gang)
    gpus = sum(map(gang_gpus, gangs))
    return replace(
        v, retained_gpus=v.retained_gpus + gpus, retained_gangs=(*v.retained_gangs, *gangs), ending_gangs=tuple(left),
        ending=v.ending if left else frozenset(), queue_room_gpus=max(0, v.queue_room_gpus - gpus),
    )  # fmt: skip
