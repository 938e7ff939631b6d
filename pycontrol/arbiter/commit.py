"""From a policy's plan to leases: renewals in place, revocations with a deadline, grants of exact GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pycontrol.arbiter import causes, leases, standin
from pycontrol.arbiter.causes import Cause
from pycontrol.arbiter.durable import REVOKING, Lease
from pycontrol.arbiter.facts import LeaseExtended, LeaseGranted, PolicyMemory
from pycontrol.arbiter.state import State, as_gang
from pycontrol.arbiter.supply import Lot, Supply
from pycontrol.model.auction import BidReceipt, Gang, Plan
from pycontrol.model.events import HeldGrant, SendGrant
from pycontrol.model.topology import Gpu

BID_FIELDS = tuple(f.name for f in dataclasses.fields(BidReceipt))


def commit(
    s: State,
    round_id: str,
    lot: Lot,
    ending: dict[str, list[list[Lease]]],
    plan: Plan,
    memory_key: str,
    receipt: dict[str, Any],
    now_s: float,
) -> bool:
    """Carries the plan out on the state as it is now; fills the receipt; returns whether GPUs are left."""
    if dict(plan.memory) != dict(s.durable.memory.get(memory_key, {})):
        s.record(PolicyMemory(dict(plan.memory), memory_key))
    return _Commit(s, round_id, lot, ending, now_s).run(plan, receipt)


class _Commit:
    def __init__(
        self, s: State, round_id: str, lot: Lot, ending: dict[str, list[list[Lease]]], now_s: float
    ) -> None:
        self.s, self.round_id, self.lot, self.now_s = s, round_id, lot, now_s
        self.ending = {a: [gang for gang in gangs if leases.unchanged(s, gang)] for a, gangs in ending.items()}
        self.coming: dict[str, set[Gpu]] = {}
        """By host: GPUs that somebody still holds and that can be promised: ending in this round, or revoked."""
        held = (x.gpu for gangs in self.ending.values() for gang in gangs for x in gang)
        for gpu in (*held, *s.revoking):
            if gpu not in s.durable.next and s.usable(gpu):
                self.coming.setdefault(gpu.host, set()).add(gpu)
        self.left = dict(lot.free or {})
        """GPUs by host of the lot that nobody got yet."""
        self.renewed: list[str] = []
        self.granted: list[dict[str, Any]] = []
        self.revoked: list[dict[str, Any]] = []
        self.dropped: list[str] = []

    def run(self, plan: Plan, receipt: dict[str, Any]) -> bool:
        """Renews first, so that nobody else is given a GPU that stays; then revokes; then grants."""
        s = self.s
        fresh: list[tuple[str, Gang, bool]] = []
        for award in plan.awards:
            app = s.durable.apps.get(award.app_id)
            if app is None or app.finished_s is not None:
                self.dropped.append(f"{award.app_id} ended during the round")
                continue
            own = [(as_gang(x.gpu for x in held), held) for held in self.ending.get(award.app_id, ())]
            for gang in award.gangs:
                kept = next((k for k, (places, _) in enumerate(own) if places == gang), None)
                if kept is None:
                    fresh.append((award.app_id, gang, award.leftover))
                else:
                    self._renew(award.app_id, own.pop(kept)[1], award.leftover)
        self.revoked = self._revoke()
        for k, (app_id, gang, leftover) in enumerate(fresh):
            self._grant(app_id, gang, leftover, k)
        self._fill(receipt, plan)
        return bool(self._unused())

    def _renew(self, app_id: str, gang: list[Lease], leftover: bool) -> None:
        s = self.s
        end_s = leases.end_s(s, max(self.now_s, min(x.end_s for x in gang)), gang[0].gpu.host)
        for lease in gang:
            s.record(LeaseExtended(lease.gpu, end_s))
            self.coming.get(lease.gpu.host, set()).discard(lease.gpu)
            self.left[lease.gpu.host] = self.left.get(lease.gpu.host, 0) - 1
            self.renewed.append(str(lease.gpu))
        by_grant: dict[str, list[Gpu]] = {}
        for lease in gang:
            by_grant.setdefault(lease.grant_id, []).append(lease.gpu)
        for grant_id, gpus in by_grant.items():
            grant = HeldGrant(grant_id, tuple(gpus), end_s)
            s.emit(SendGrant(app_id, self.round_id, grant, renewal=True, leftover=leftover))

    def _revoke(self) -> list[dict[str, Any]]:
        """Takes every ending lease back that was not renewed, by its end (or a lead from now if that is over)."""
        s, revoked = self.s, []
        for app_id, gangs in self.ending.items():
            lost = [x for gang in gangs for x in gang if x.gpu in self.coming.get(x.gpu.host, ())]
            if not lost:
                continue
            deadline_s = max(min(x.end_s for x in lost), self.now_s + s.lead_s)
            revoked += [{"gpu": str(x.gpu), "app_id": app_id, "deadline_s": deadline_s} for x in lost]
            leases.take_back(s, lost, self.now_s, deadline_s, Cause(causes.LOST_ROUND, f"lost round {self.round_id}"))
            for x in lost:  # what no container used is free by now
                if x.gpu not in s.durable.leases:
                    self.coming[x.gpu.host].discard(x.gpu)
        return revoked

    def _grant(self, app_id: str, gang: Gang, leftover: bool, k: int) -> None:
        s, grant_id = self.s, f"{self.round_id}.{k}"
        ask = standin.ask_for(s, app_id, gang) if app_id in s.foreign else None
        if app_id in s.foreign and ask is None:
            self.dropped.append(f"{app_id}: none of its asks fits {dict(gang)}")
            return
        gpus = self._pick(gang) if s.supply is None else self._pick_cells(s.supply, app_id, gang, grant_id)
        if gpus is None:
            self.dropped.append(f"{app_id}: its gang {dict(gang)} is no longer there")
            return
        self._used(gpus)
        available_s = max(self._availability(g)[0] for g in gpus)
        from_s = max(available_s, self.now_s)
        end_s = leases.end_s(s, from_s, gpus[0].host)
        for gpu in gpus:
            after = gpu in s.durable.leases
            s.record(LeaseGranted(gpu, app_id, grant_id, from_s, end_s, grant_id, after, self.lot.guaranteed))
            self.granted.append({"gpu": str(gpu), "app_id": app_id})
        grant = HeldGrant(grant_id, tuple(sorted(gpus)), end_s, available_s)
        s.emit(SendGrant(app_id, self.round_id, grant, leftover=leftover))
        if ask is not None:
            standin.assign(s, app_id, gpus, ask)

    def _used(self, gpus: Sequence[Gpu]) -> None:
        for gpu in gpus:
            self.coming.get(gpu.host, set()).discard(gpu)
            self.left[gpu.host] = self.left.get(gpu.host, 0) - 1

    def _pick(self, gang: Gang) -> list[Gpu] | None:
        """Free GPUs of the hosts, then those that come free first."""
        gpus: list[Gpu] = []
        for host, n in gang:
            here = self.s.free.on(host)[:n]
            if len(here) < n:
                here += sorted(self.coming.get(host, ()), key=self._availability)[: n - len(here)]
            if len(here) < n:
                return None
            gpus += here
        return gpus

    def _pick_cells(self, supply: Supply, app_id: str, gang: Gang, grant_id: str) -> list[Gpu] | None:
        """The GPUs that the cells give; who borrowed them gives them back, gangs whole."""
        s, lot = self.s, self.lot
        placed = supply.place(grant_id, lot.vc, lot.guaranteed, gang)
        if placed is None:
            return None
        deadline_s = self.now_s + s.lead_s
        why = Cause(causes.GUARANTEE, f"the cells of {lot.vc} need it")
        evicted = [x for x in s.durable.leases.values() if x.grant_id in placed.evicted and x.state != REVOKING]
        for lease in evicted:
            if s.durable.leases.get(lease.gpu) is lease and lease.state != REVOKING:
                lost = next(g for g in s.gangs_of(lease.app_id) if lease in g)
                self.revoked += [{"gpu": str(x.gpu), "app_id": x.app_id, "deadline_s": deadline_s} for x in lost]
                leases.take_back(s, lost, self.now_s, deadline_s, why)
        promised = [x for x in s.durable.next.values() if x.grant_id in placed.evicted]
        leases.lose_next(s, promised, self.now_s, why)
        return list(placed.gpus)

    def _availability(self, gpu: Gpu) -> tuple[float, Gpu]:
        """When the GPU is free at the latest (0: now), then its name."""
        present = self.s.durable.leases.get(gpu)
        if present is None:
            return 0.0, gpu
        return max(present.end_s, self.now_s), gpu

    def _unused(self) -> dict[str, int]:
        if self.lot.free is not None:
            return {host: n for host, n in self.left.items() if n > 0}
        counts = self.s.free.counts()
        for host, gpus in self.coming.items():
            if gpus:
                counts[host] = counts.get(host, 0) + len(gpus)
        return counts

    def _fill(self, receipt: dict[str, Any], plan: Plan) -> None:
        receipt.update(
            bids=[{f: getattr(b, f) for f in BID_FIELDS} for b in plan.bids],
            awards=[{"app_id": a.app_id, "gangs": a.gangs, "leftover": a.leftover} for a in plan.awards],
            leftover_gpus=dict(plan.leftover_gpus),
            unused_gpus=self._unused(),
            objective_log=plan.objective_log,
            proved_optimal=plan.proved_optimal,
            gap=plan.gap,
            solve_s=plan.solve_s,
            seed=plan.seed,
            why=dict(plan.why),
            note="; ".join([*filter(None, [plan.note]), *self.dropped]),
            renewed=self.renewed,
            granted=self.granted,
            revoked=self.revoked,
        )
