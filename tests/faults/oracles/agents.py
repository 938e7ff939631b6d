"""A connected Agent believes to hold what the Arbiter says that its app holds."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.model.topology import Gpu
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle

VIEW_S = 20.0
"""For an Agent that hears and is heard to believe what is: as long as it repeats a plan that is refused."""


class Agents(Oracle):
    """Kind `agent's view`."""

    def look(self, plane: Any) -> None:
        """Compares each Agent's view with the Arbiter's."""
        a = plane.arbiter
        for app_id, master in self.world.masters.items():
            if getattr(master, "linked_s", None) is None or master.life.dead or master.brain.ending is not None:
                continue
            heard = self.world.net.quick(master.name, master.peer) and self.sim.now >= master.mute_until_s
            leases = {g: x for x in a.durable.leases.of(app_id) for g in x.gpus}
            mine = {g for g, x in leases.items() if x.state != REVOKING}
            mine |= set(gpus_in(a.durable.reservations.of(app_id)))
            wrong = set(master.brain.held) ^ mine
            for gpu in wrong - {g for g, x in leases.items() if x.state == REVOKING}:
                if self.lasts(("believes", master.attempt_id, gpu), heard, VIEW_S):
                    has = "holds" if gpu in mine else "does not hold"
                    raise Violation("agent's view", f"{app_id} {has} {gpu}, its Agent believes otherwise", app_id)

    def registered(self, app_id: str, granted: set[Gpu], believed: set[Gpu]) -> None:
        """Checks that an Agent that was told all its grants believes to hold nothing else."""
        if believed - granted:
            wrong = ", ".join(sorted(map(str, believed - granted)))
            raise Violation("agent's view", f"{app_id} believes to hold {wrong} and was just told otherwise", app_id)
