"""What a change of the configuration would do to who runs: the Arbiter plays it on a scene, and nobody is touched.

Two worlds run on from the scene until what runs now is decided: one as it is, one with the change. No app arrives.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pycontrol.arbiter.ledger.facts import OF_LEASE, Fact, LeaseBorrowed, LeaseEnded, LeaseRevoking, LeaseStarted
from pycontrol.arbiter.ledger.lease import REVOKING, LeaseTable
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu, count_by_host
from pycontrol.simulation.outlook import NoOutlook, Resumed
from pycontrol.simulation.scene import Scene, own_policies

ASSUMED = "no app arrives, nodes stay as they are, apps train on as they declared; apps without an Agent go on for ever"


class Played(Resumed):
    """A scene on which a change is in force from now on, run until `until_s`."""

    def __init__(self, scene: Scene, until_s: float, after: Scene | None = None, restart: bool = False) -> None:
        """`after`: the scene with the change; None: nothing changes. `restart`: it needs one of the control plane."""
        after = after or scene
        apply = not restart and after.layout is not None and after.layout != scene.layout
        super().__init__(
            dataclasses.replace(after, layout=scene.layout) if apply else after, after.settings.seed, error=0.0
        )
        a = self.arbiter
        self.losses: dict[tuple[str, float, str, str], list[Gpu]] = {}
        """(app, when they must be free, rule, why) -> GPUs in use that it loses."""
        self.borrows: dict[str, int] = {}
        """App -> GPUs that it owned and only borrows from then on."""
        self.starts: dict[str, float] = {}
        """App that has not run -> when it starts."""
        ran = {x.app_id for x in a.durable.leases.each() if x.container_id}
        self._waiting = {app_id for app_id, x in a.durable.live.items() if not x.attained_gpu_s} - ran
        self._table = LeaseTable()
        for x in a.durable.claims():
            self._table.load(x)
        self._running = {
            gpu for x in a.durable.leases.each() if x.container_id and x.state is not REVOKING for gpu in x.gpus
        }
        self.watchers.append(self._note)
        if apply:
            assert after.layout is not None
            own = own_policies(CellSupply(after.layout), after.policy, after.options)
            a.reconfigure(after.layout, self.now, own)
        if after is not scene:
            a.clerk.request_round(self.now)
        if restart:
            a.cluster.recovers_until(self.now + after.settings.recovery_s)
        self.settings = dataclasses.replace(self.settings, until_s=until_s)
        while self._step():
            pass
        self.holds = {app_id: a.holdings.holding(app_id) for app_id in a.durable.live}

    def _note(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if not isinstance(fact, OF_LEASE):
                continue
            step = self._table.take(fact)
            for x in step.before if isinstance(fact, LeaseRevoking | LeaseEnded) else ():
                lost = tuple(gpu for gpu in x.gpus if gpu in self._running)
                self._running.difference_update(lost)
                if lost and isinstance(fact, LeaseRevoking):
                    self.losses.setdefault((x.app_id, fact.end_s, fact.cause, self._why(x.app_id, fact)), []).extend(
                        lost
                    )
            for x in step.after:
                if isinstance(fact, LeaseBorrowed):
                    self.borrows[x.app_id] = self.borrows.get(x.app_id, 0) + len(x.gpus)
                elif isinstance(fact, LeaseStarted) and x.app_id in self._waiting:
                    self.starts.setdefault(x.app_id, fact.at_s)

    def _why(self, app_id: str, f: LeaseRevoking) -> str:
        """Without the name of a round that is not held; a round takes what is above a queue's limit, too."""
        if f.cause is not EndReason.LOST_ROUND:
            return f.reason
        full = self.arbiter.holdings.full(app_id, 1, self.now)
        return full.sentence if full is not None else "it loses a round"


def until_s(scene: Scene, after: Scene, restart: bool) -> float:
    """When all that runs now is decided."""
    ends: list[float] = [x["end_s"] for x in scene.durable["leases"] if math.isfinite(x["end_s"])]
    begin_s = scene.now_s + (after.settings.recovery_s + 2 * after.settings.lead if restart else 0.0)
    return max([begin_s, *ends]) + after.settings.lead + after.settings.round_retry_s


def preview(scene: Scene, after: Scene, restart: bool = False) -> dict[str, Any]:
    """Who loses which GPUs, when, by which rule; who gains; what starts. Raises NoOutlook.

    `after`: the scene with the change. `restart`: it needs one of the control plane, after which no lease ends before
    two leads have passed. What happens without the change, too, is `anyway`.
    """
    if not scene.ready:
        raise NoOutlook("no round is held at present")
    end_s = until_s(scene, after, restart)
    as_is, then = Played(scene, end_s), Played(scene, end_s, after, restart)
    lost_anyway = {(app_id, gpu) for (app_id, *_), gpus in as_is.losses.items() for gpu in gpus}
    lost = grouped(((*key, (key[0], gpu) in lost_anyway), gpu) for key, gpus in then.losses.items() for gpu in gpus)
    more = {app_id: n - as_is.holds.get(app_id, 0) for app_id, n in then.holds.items()}
    return {
        "now_s": scene.now_s, "until_s": end_s, "restart": restart, "assumed": ASSUMED,
        "losses": [{**_of(then, app_id), "gpus": count_by_host(gpus), "gpu_ids": sorted(map(str, gpus)),
                    "at_s": at_s, "rule": rule, "why": why, "anyway": anyway}
                   for (app_id, at_s, rule, why, anyway), gpus in lost.items()],
        "borrows": [{**_of(then, app_id), "gpus": n} for app_id, n in sorted(then.borrows.items())],
        "changes": [{**_of(then, app_id), "gpus": n} for app_id, n in sorted(more.items()) if n],
        "starts": [{**_of(then, x), "at_s": at_s, "anyway_s": as_is.starts.get(x)}
                   for x, at_s in sorted(then.starts.items(), key=lambda y: y[1])],
        "delayed": [_of(then, x) for x in sorted(as_is.starts.keys() - then.starts.keys())],
    }  # fmt: skip


def _of(world: Resumed, app_id: str) -> Mapping[str, str]:
    record = world.arbiter.durable.apps[app_id]
    return {"app_id": app_id, "name": record.name, "queue": record.queue, "user": record.user}
