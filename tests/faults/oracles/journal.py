"""What is recovered is what was journaled, and no effect comes before its fact."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.model import events as ev
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Journal(Oracle):
    """Kinds `journal`, `journal first` and `placed without lease`."""

    def recovered(self, plane: Any, durable: Durable) -> None:
        """Checks that a life begins with exactly the journaled facts."""
        if plane.journal_cut:
            plane.journal_cut = False
            self.oracles.shadows[plane.name] = Durable.load(durable.dump())
        known = self.oracles.shadow_of(plane).dump()
        if durable.dump() != known:
            differs = _difference(durable.dump(), known)
            raise Violation("journal", f"what is recovered is not what was journaled: {differs}")

    def effect(self, plane: Any, e: Any) -> None:
        """Checks that the facts of an effect are in the journal."""
        known_to = self.oracles.shadow_of(plane)
        if isinstance(e, ev.SendGrant):
            now = plane.arbiter.durable  # a GPU that it has not was lost in the same step
            for gpu in (g for g in e.grant.gpus if g in now.leases or g in now.reservations):
                known = (known_to.leases.get(gpu), known_to.reservations.get(gpu))
                if not any(x is not None and x.app_id == e.app_id for x in known):
                    raise Violation(
                        "journal first", f"{gpu} is granted to {e.app_id}, the journal does not know", str(gpu)
                    )
        elif isinstance(e, ev.Place):
            for gpu in e.gpus:
                lease = known_to.leases.get(gpu)
                if lease is None or lease.app_id != e.ask.app_id:
                    raise Violation("placed without lease", f"{e.ask.app_id} on {gpu}", str(gpu))


def _difference(found: Any, expected: Any, at: str = "") -> str:
    """The differences between two dumps."""
    if isinstance(found, dict) and isinstance(expected, dict):
        parts = (_difference(found.get(k), expected.get(k), f"{at}.{k}") for k in {**found, **expected})
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        parts = (_difference(*pair, f"{at}[{k}]") for k, pair in enumerate(zip(found, expected, strict=True)))
    else:
        return "" if found == expected else f"{at} is {str(found)[:100]} in place of {str(expected)[:100]}"
    return "; ".join(filter(None, parts))[:600]
