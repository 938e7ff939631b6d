"""What `explain` shows is what the Arbiter told the app's Agent."""

from __future__ import annotations

from pycontrol.arbiter.supply.cells import CellSupply
from pycontrol.cells.config import CellsFile, layout
from pycontrol.config import parse
from pycontrol.model import events as ev
from pycontrol.queries.explain import rho_terms
from tests.arbiter.mini import CELLS, Mini


def test_rho_of_an_app_in_a_virtual_cluster_counts_that_clusters_gpus() -> None:
    supply = CellSupply(layout(parse(CELLS, CellsFile, "cells.yaml"), name="cells.yaml"))
    m = Mini(nodes=(("n1", 4), ("n2", 4)), supply=supply)
    m.app("a", gang=2, gangs=4, queue="root.a", work=4800.0)
    (registered,) = m.of(ev.SendRegistered)
    shown = rho_terms(m.a, "a", m.now)
    assert shown is not None
    assert shown["cluster_gpus"] == registered.contention.cluster_gpus == 4
    assert (m.a.holdings.topology.gpus, shown["t_id_s"]) == (8, 4800.0 / 4)
