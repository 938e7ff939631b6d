"""A virtual cluster's policy with the schedule of its private cluster: apps that are behind it go first.

Cells serve every request that the private cluster would serve, and yet a job may end later: GPUs that its queue borrows
change the order of its apps. So the private cluster is simulated (`private.py`), and each offer of the virtual
cluster's own machines goes, to boosted apps before all others,

1. to apps that have ended in the private schedule: as many gangs as they had there,
2. to apps that run in the private schedule now: as many gangs as there, where they run here, else where they run there,
3. to apps that have done more work in the private schedule than here, those that lack most first,

and the policy shares out the rest as usual, on the schedule's bids if it asks for some. All leases last until the next
common end, however soon that is: at these ends the private cluster revokes GPUs, and no app should have to wait for a
lease that began half a lease before, or just before the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pycontrol.auction.handout import ByKey, Caps, Taker, gangs_of, hand_out, less
from pycontrol.auction.placing import ELSE, FreeIndex, fitting, take
from pycontrol.model.auction import AppView, Award, Bid, Gang, Hold, Offer, Plan, Snapshot, gang_gpus
from pycontrol.policies.classes import is_boosted
from pycontrol.policies.filling import Filling
from pycontrol.policies.isonomy import Isonomy
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.private import PrivateSchedule, next_end_s

KEY, FORMER_KEY = "private_schedule", "shadow"
"""Of the policy's memory, which is in the journal."""
BEHIND = 1e-3
"""An app is behind if it lacks more than this fraction of its work."""
YOUNG_LEADS = 3.0
"""A lease that begins fewer leads before a common end may not have started when a round decides about that end."""
BY_ORDER = ("yarn_cs", "gandiva", "tiresias", "isonomy", "srtf", "srsf", "optimus", "drf")
KEEPS = (*BY_ORDER, "themis", "worst_first", "oef", "gavel", "gandiva_fair", "max_min")
"""Policies under which no app ended later than the private schedule promises in the experiment `hived-closed-loop`. Not
slaq: its order follows losses that only trainers know, and in the schedule nobody trains."""


class NoSchedule(ValueError):
    """The policy does not keep a private schedule's promise."""


@dataclass(frozen=True)
class _First:
    """An app that goes before the policy's order, up to `gangs` gangs; `places`: its gangs in the private schedule."""

    view: AppView
    gangs: int
    places: tuple[Gang, ...]
    why: str


@dataclass(frozen=True)
class OnSchedule:
    """A policy with a private schedule; it applies only to a virtual cluster's own machines, not to borrowed GPUs."""

    policy: Policy

    by_progress: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.policy.name not in KEEPS:
            names = ", ".join(KEEPS)
            raise NoSchedule(
                f"private_schedule: true: is for the policies {names} (got {self.policy.name}); choose one or remove it"
            )

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.name

    @property
    def alone(self) -> Policy:
        """The policy on the private cluster, where a restart costs nothing."""
        return replace(self.policy, loss=0.0) if isinstance(self.policy, Isonomy) else self.policy

    @property
    def asks_agents(self) -> bool:
        """False."""
        return False

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """None: no Agent is asked for bids."""
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: apps behind the private schedule first, then the policy's plan for the rest."""
        if not snapshot.private:
            return PrivateSchedule.load({}, snapshot.now_s).decide(self.policy, snapshot)
        memory = snapshot.memory
        schedule = PrivateSchedule.load(memory.get(KEY) or memory.get(FORMER_KEY) or {}, snapshot.now_s)
        schedule.advance(snapshot, self.policy)
        next_leases = schedule.with_next_leases(snapshot, self.policy)
        first = _first(schedule, next_leases, snapshot)
        got, why = _placed(first, snapshot, one_type(self.policy))
        rest = _without(replace(snapshot, memory=policy_memory(memory)), got)
        holds = _held(first, got, rest)
        held = dict(pair for hold in holds for pair in hold.gang)
        rest = replace(rest, free={host: n for host, n in rest.free.items() if host not in held})
        plan = schedule.decide(self.policy, rest)
        awards: dict[str, tuple[Gang, ...]] = {a: tuple(gangs) for a, gangs in got.items()}
        for award in plan.awards:
            awards[award.app_id] = (*awards.get(award.app_id, ()), *award.gangs)
        until_s = next_end_s(snapshot)
        return replace(
            plan,
            awards=tuple(Award(a, gangs, until_s=until_s) for a, gangs in awards.items()),
            why={**plan.why, **why},
            memory=_memory(schedule, plan.memory),
            holds=(*plan.holds, *holds),
            unused_gpus={**plan.unused_gpus, **held},
        )


def one_type(policy: Policy) -> bool:
    """Whether a gang gets GPUs of one type, unless its app mixes types; with a private schedule as without."""
    alone = policy.policy if isinstance(policy, OnSchedule) else policy
    return alone.asks_agents or (isinstance(alone, Filling) and alone.one_type)


def policy_memory(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    """The memory of the policy itself, whether it has a private schedule or not."""
    inner: Mapping[str, Any] = memory["policy"] if KEY in memory or FORMER_KEY in memory else memory
    return inner


def _memory(schedule: PrivateSchedule, inner: Mapping[str, Any]) -> dict[str, Any]:
    """The memory with the schedule; `apps` names those whose attained service is wanted when they have ended."""
    return {
        KEY: schedule.dump(),
        "policy": inner,
        "apps": sorted({*schedule.apps, *inner.get("apps", ())}),
    }


def _first(schedule: PrivateSchedule, next_leases: PrivateSchedule, s: Snapshot) -> list[_First]:
    """The apps that go first, in order: boosted ones before the others, with all their gangs."""
    overdue, mirrored, behind = [], [], []
    for v in s.apps:
        app = next_leases.apps[v.app_id]
        ahead = v.demand.work_done_gpu_s - schedule.done(v.app_id, s.now_s, s.topology)
        places = tuple(gang for gang, _ in app.gangs if gang_gpus(gang) in v.demand.sizes)  # its size now
        boosted = is_boosted(v)
        gangs = v.demand.gangs if boosted else len(app.gangs) or max(1, app.width)
        if app.ended_s is not None:
            why = f"on its private cluster it would have ended {max(0.0, s.now_s - app.ended_s):.0f} s ago"
            overdue.append((app.ended_s, v.app_id, _First(v, gangs, (), why)))
        elif app.gangs:
            why = "on its private cluster it would run now"
            mirrored.append((app.submitted_s, v.app_id, _First(v, gangs, places, why)))
        elif -ahead > BEHIND * app.need or boosted:
            why = "it is boosted" if boosted else f"it is {-ahead:.0f} GPU-s behind its private cluster"
            behind.append((ahead, v.app_id, _First(v, gangs, (), why)))
    found = (entry for group in (overdue, mirrored, behind) for *_, entry in sorted(group, key=lambda x: x[:2]))
    return sorted(found, key=lambda f: -is_boosted(f.view))


def _placed(first: list[_First], s: Snapshot, typed: bool) -> tuple[dict[str, list[Gang]], dict[str, str]]:
    """(app -> its gangs, app -> why) for the apps that go first.

    They stay where they run. Only if an earlier app is served worse by that than if all moved to their places in the
    schedule, where they fit together, do they move. `typed`: as `one_type`.
    """
    staying, moved = (_fill(first, s, typed, stay) for stay in (True, False))
    served, otherwise = ([len(got.get(f.view.app_id, ())) for f in first] for got in (staying, moved))
    if otherwise > served:
        staying = moved
    return staying, {f.view.app_id: f.why for f in first if f.view.app_id in staying}


def _wanted(f: _First) -> int:
    """The number of gangs that the app is to get from this offer."""
    return max(0, min(f.gangs, f.view.demand.gangs) - len(f.view.retained_gangs))


def _fill(first: list[_First], s: Snapshot, typed: bool, stay: bool) -> dict[str, list[Gang]]:
    """App -> its gangs; with `stay` every app keeps its present ones before any gets others."""
    wanted = {f.view.app_id: _wanted(f) for f in first}
    got: dict[str, list[Gang]] = {}
    give = gangs_of(FreeIndex(s.free, s.topology), Caps(s.apps))
    for staying in (True, False) if stay else (False,):
        takers = []
        for f in first:
            d, ending = f.view.demand, f.view.ending_gangs
            types = ELSE.join(fitting(d, s.topology)) if typed else d.gpu_type
            own = ending if staying else f.places if stay else (*f.places, *ending)
            shape = 0 if staying else d.gang_gpus, d.scope, types, d.members
            takers.append(Taker(f.view, shape, [gang for gang in own if gang not in f.view.retained_gangs]))
        order = ByKey(takers, lambda to: 0 if len(got.get(to.view.app_id, ())) < wanted[to.view.app_id] else None)
        for to, gang in hand_out(order, give):
            got.setdefault(to.view.app_id, []).append(gang)
    return {f.view.app_id: got[f.view.app_id] for f in first if f.view.app_id in got}


def _held(first: list[_First], got: Mapping[str, list[Gang]], s: Snapshot) -> tuple[Hold, ...]:
    """Just before a common end, GPUs that nobody gets since the first app without its gang waits for them: those of the
    large enough machine with most free ones, or all for a wider gang.

    A lease that began now might not have started when the others end: its machine would not be free for a whole lease.
    """
    end_s, caps = next_end_s(s), Caps(s.apps)
    lacking = (f.view for f in first if len(got.get(f.view.app_id, ())) < _wanted(f))
    waiting = next((view for view in lacking if caps.of(view) >= view.demand.gang_gpus), None)
    if waiting is None or not s.free or end_s - s.now_s > YOUNG_LEADS * s.lead_s:
        return ()
    large = [pair for pair in s.free.items() if s.topology.gpus_by_host[pair[0]] >= waiting.demand.gang_gpus]
    gang = (max(large, key=lambda pair: pair[1]),) if large else tuple(s.free.items())
    return (Hold(waiting.app_id, gang, end_s),)


def _without(s: Snapshot, got: Mapping[str, list[Gang]]) -> Snapshot:
    """The snapshot after these gangs were given: not on offer, and retained by their apps."""
    free, new = dict(s.free), Counter[str]()
    for v in s.apps:
        gangs = got.get(v.app_id, [])
        take(free, gangs)
        new.update(dict.fromkeys(v.rooms, sum(map(gang_gpus, less(gangs, v.ending_gangs)))))
    views = tuple(_holding(v, got.get(v.app_id, []), new) for v in s.apps)
    return replace(s, free={host: n for host, n in free.items() if n > 0}, apps=views)


def _holding(v: AppView, gangs: list[Gang], new: Mapping[str, int]) -> AppView:
    """The view with these gangs. `new`: limit -> GPUs that its apps got besides those that they keep."""
    left = less(v.ending_gangs, gangs)
    gpus, kept_gpus = (sum(map(gang_gpus, x)) for x in (gangs, less(v.ending_gangs, left)))
    kept = replace(v, retained_gpus=v.retained_gpus + gpus, retained_gangs=(*v.retained_gangs, *gangs))
    rooms = {name: room - kept_gpus - new[name] for name, room in v.rooms.items()}
    return replace(kept, ending_gangs=tuple(left), ending=v.ending if left else frozenset(), rooms=rooms)
