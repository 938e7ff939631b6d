"""The apps that take part in a round, and the policy's views of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter import apps, standin
from pycontrol.arbiter.app_views import AppViewCache, demand_of, view
from pycontrol.arbiter.round import Round
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import RoundPart
from pycontrol.model.auction import AppView
from pycontrol.model.reasons import Pending, Reason

ASIDE_S = 300.0
"""How long an app with numbers that made the policy fail takes no part."""
NOT_CONNECTED = Reason(Pending.AGENT_AWAY, "its Agent is not connected")


class Participants:
    """Finds the apps that take part in a round; `Round.out` says why others do not."""

    def __init__(self, state: State) -> None:
        self.s = state
        self._aside: dict[str, tuple[float, str]] = {}
        """App that takes no part -> (until when, why)."""
        self._waiting = AppViewCache(state)

    def forget(self, app_id: str) -> None:
        """Drops what is known of an application that YARN has removed."""
        self._aside.pop(app_id, None)
        self._waiting.forget(app_id)

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
        why = r.eligibility.why_out(app_id, r.eligibility.demand(app_id, r.offered, now_s), r.offered)
        if why is not None:
            r.out[app_id] = why
        return why is not None

    def stand_in(self, r: Round, app_id: str, now_s: float) -> None:
        """Sets the rho of an unmanaged app in a round."""
        s = self.s
        apps.note_demand(s, app_id, demand_of(s, app_id, now_s).gpus)
        r.rho[app_id] = standin.rho(s, app_id, s.holding(app_id) - len(r.ending_gpus(app_id)), now_s)

    def views(self, r: Round, now_s: float) -> dict[str, AppView]:
        """App -> its view, for the apps of the round; apps that were asked for rho and did not answer are left out."""
        s = self.s
        if r.policy.asks_agents:
            asked = [a for a in r.rho if a not in r.out and a in s.durable.live]
            demand = {a: r.eligibility.demand(a, r.offered, now_s) for a in asked}
            return {a: view(s, a, r.rho[a], r.ending.get(a, ()), now_s, r.part, demand[a]) for a in asked}
        views = {}
        for app_id, gangs in r.ending.items():
            agent = s.agents.get(app_id)
            if agent is not None and agent.connected:
                views[app_id] = view(s, app_id, agent.rho, gangs, now_s, r.part)
            elif app_id not in s.agents.unmanaged_apps:
                r.out[app_id] = NOT_CONNECTED
        views.update(self._waiting.views(r.part, r.ending, now_s))
        borrowing = r.parts.borrowers_of(r.part)
        for app_id in borrowing:
            agent = s.agents.get(app_id)
            if agent is not None and agent.connected and app_id not in views:
                views[app_id] = view(s, app_id, agent.rho, (), now_s, r.part)
        for app_id in s.agents.unmanaged_apps:
            if not r.part.is_of(s.durable.apps[app_id].vc):
                continue
            if app_id in r.ending or app_id in borrowing or standin.waits(s, app_id):
                self.stand_in(r, app_id, now_s)
                wants = r.eligibility.demand(app_id, r.offered, now_s)
                views[app_id] = view(s, app_id, r.rho[app_id], r.ending.get(app_id, ()), now_s, r.part, wants)
        views = {
            a: v for a, v in views.items() if a in r.ending or (a not in r.part.without and r.part.admits(v.demand))
        }
        return {a: v for a, v in views.items() if not self.left_out(r, a, now_s)}

    def present(self, part: RoundPart) -> frozenset[str]:
        """The active apps that share the part."""
        live = self.s.durable.live
        return frozenset(live if part.whole else (a for a, app in live.items() if part.is_of(app.vc)))

    def ended(self, memory: Mapping[str, Any], present: frozenset[str], now_s: float) -> dict[str, float]:
        """App -> attained service (GPU-s), for apps that the policy remembers and that are gone."""
        known = self.s.durable.apps
        gone = (a for a in memory.get("apps", ()) if a not in present)
        return {a: self.s.attained_gpu_s(a, now_s) for a in gone if a in known}
