"""The audit of guarantees on the journal of an Arbiter with cells: clean, but not with a bug in the guarantee."""

from __future__ import annotations

from typing import Any

import pytest

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.arbiter.ledger.lease import Lease, gpus_in
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.audit.audit import GANG_DEADLINE_S, LEAD_S, audit
from pycontrol.audit.evidence import Evidence, YarnRecords, add_event
from pycontrol.audit.history import History
from pycontrol.model.events import Event
from pycontrol.model.reasons import Cause, EndReason
from tests.web.scene import SceneWorld

OWNER, STRANGER = "application_1_0001", "application_1_0002"
HOSTS = ("n1", "n2")
EVER = 1e7


class Owned(SceneWorld):
    """Two virtual clusters of a machine each, and the nodes' evidence."""

    def __init__(self, lease_s: float = 60.0, min_lend_s: float = 0.0) -> None:
        self.facts: list[tuple[int, float, Fact]] = []
        cells = {
            "levels": {"node": 4},
            "hosts": list(HOSTS),
            "virtual_clusters": {"root.a": {"node": 1, "min_lend_s": min_lend_s}, "root.b": {"node": 1}},
        }
        machines = [(host, "r", 4) for host in HOSTS]
        super().__init__("isonomy", supply=cells, machines=machines, lease_s=lease_s, lead_s=6)

    def submit(self, event: Event) -> None:
        known = len(self.journal)
        super().submit(event)
        self.facts += [(len(self.facts) + k, self.now, fact) for k, fact in enumerate(self.journal[known:])]

    def late(self) -> list[str]:
        """The audit's findings after a stranger filled the cluster and the owner asked for its machine."""
        self.add_app(STRANGER, 1, 8, EVER, "root.x")
        self.run(30)
        self.add_app(OWNER, 4, 1, EVER, "root.a")
        self.run(400)
        evidence = Evidence(["e.jsonl"])
        for line in self.evidence:
            add_event(evidence, line)
        found = audit(History.of(self.facts), evidence, YarnRecords(), self.now, GANG_DEADLINE_S, LEAD_S)
        return [v["what"] for v in found["violations"] if v["kind"] == "guarantee_late"]


@pytest.mark.parametrize("min_lend_s", [0.0, 200.0])
def test_the_arbiter_as_it_is_keeps_its_guarantees(min_lend_s: float) -> None:
    w = Owned(600.0, min_lend_s)
    assert w.late() == []
    assert len(gpus_in(w.arbiter.durable.leases.of(OWNER))) == 4


@pytest.mark.parametrize("min_lend_s", [0.0, 100.0])
def test_a_borrower_that_keeps_revoked_gpus_is_found(min_lend_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker continues, and is killed long after its deadline."""
    take_back = leases.revoke

    def late(s: Holdings, clerk: Clerk, lost: list[Lease], now_s: float, deadline_s: float, why: Cause) -> None:
        take_back(s, clerk, lost, now_s, deadline_s + 200 * (why.kind is EndReason.GUARANTEE), why)

    monkeypatch.setattr(leases, "revoke", late)
    monkeypatch.setattr(Owned, "do_SendRevoke", lambda self, e: self.agents[e.app_id].held.difference_update(e.gpus))
    found = Owned(600.0, min_lend_s).late()
    assert len(found) == 4
    assert all(f"{OWNER} could claim it for root.a" in what for what in found)


def test_cells_that_never_give_what_the_round_awarded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reservation was ever made, so none is late; but each round awarded the owner its own machine."""
    place = CellSupply.place

    def only_what_is_borrowed(self: CellSupply, group: str, vc: str, guaranteed: bool, *args: Any) -> Any:
        return None if guaranteed else place(self, group, vc, guaranteed, *args)

    monkeypatch.setattr(CellSupply, "place", only_what_is_borrowed)
    (found,) = Owned(lease_s=600.0).late()
    assert found.startswith(f"{OWNER}: ")
    assert "rounds of root.a awarded it GPUs of its own" in found
