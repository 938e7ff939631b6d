"""Receipts are true, and no round passes a limit or moves anything while leases stand still."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.facts import Fact, LeaseEnded, LeaseExtended, LeaseGranted, LeaseRevoking, RoundHeld
from tests.faults.agreement import limits_over, queues_over
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Receipts(Oracle):
    """Kinds `receipt`, `round fails`, `queue limit`, `account limit`, `frozen` and `granted to the dead`."""

    def __init__(self, oracles: Any) -> None:
        super().__init__(oracles)
        self.ended: set[str] = set()
        """GPUs whose leases ended, or are to end, since the last receipt."""

    def after(self, plane: Any, fact: Fact, facts: list[Fact]) -> None:
        """Checks a round. It names, too, what ended before it asked for bids, since the receipt before."""
        if isinstance(fact, LeaseRevoking | LeaseEnded):
            self.ended.update(map(str, fact.gpus))
        elif isinstance(fact, RoundHeld):
            self._receipt(plane, fact, facts)
            self.ended.clear()

    def _receipt(self, plane: Any, fact: RoundHeld, facts: list[Fact]) -> None:
        r, arbiter = fact.receipt.dump(), plane.arbiter
        note = str(r.get("note", ""))
        if note.startswith("the policy failed"):
            raise Violation("round fails", f"{fact.round_id} of {r['policy']}: {note}")
        told = sorted(x["gpu"] for x in r.get("granted", ()))
        mine = (f for f in facts if isinstance(f, LeaseGranted) and f.grant_id.startswith(f"{fact.round_id}."))
        done = sorted(str(gpu) for f in mine for gpu in f.gpus)
        if told != done:
            raise Violation("receipt", f"{fact.round_id} says that it granted {told}, it granted {done}")
        revoked = {x["gpu"] for x in r.get("revoked", ())}
        ended = {str(gpu) for f in facts if isinstance(f, LeaseRevoking | LeaseEnded) for gpu in f.gpus} | self.ended
        if not revoked <= ended:
            raise Violation("receipt", f"{fact.round_id} says that it revoked {revoked - ended}")
        extended = {str(gpu) for f in facts if isinstance(f, LeaseExtended) for gpu in f.gpus}
        if not set(r.get("renewed", ())) <= extended:
            raise Violation("receipt", f"{fact.round_id} says that it renewed {set(r['renewed']) - extended}")
        over = queues_over(arbiter, (x["app_id"] for x in r.get("granted", ())))
        if over:
            raise Violation("queue limit", f"{fact.round_id} granted {r['granted']}: {over}")
        kept = {x.app_id for gpu in fact.receipt.done.renewed if (x := arbiter.durable.leases.get(gpu)) is not None}
        over = limits_over(arbiter, {x["app_id"] for x in r.get("granted", ())}, kept)
        if over:
            raise Violation("account limit", f"{fact.round_id}: {over}")
        moved = told or revoked or r.get("renewed")
        if moved and (arbiter.holdings.paused or not arbiter.cluster.ready):
            raise Violation("frozen", f"{fact.round_id} moved {moved} while leases stand still")
        for x in r.get("granted", ()):
            app = self.world.store.get(x["app_id"])
            if app is not None and app.final and self.oracles.calm_s > 10 and app.app_id not in arbiter.durable.live:
                raise Violation("granted to the dead", f"{x['gpu']} to {x['app_id']}", x["gpu"])
        self.sim.tell(
            "round",
            f"{fact.round_id} offered {r['offered']} granted {r.get('granted')} revoked "
            f"{r.get('revoked')} renewed {r.get('renewed')} out {r['out']} note {note}"[:500],
        )
