"""What `explain` shows is what the Arbiter told the app's Agent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pycontrol.model import events as ev
from pycontrol.queries.explain import line, rho_terms
from tests.arbiter.mini import CELLS, Mini


def test_rho_of_an_app_in_a_virtual_cluster_counts_that_clusters_gpus() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), supply=CELLS)
    m.app("a", gang=2, gangs=4, queue="root.a", work=4800.0)
    (registered,) = m.of(ev.SendRegistered)
    shown = rho_terms(m.a, "a", m.now)
    assert shown is not None
    assert shown["cluster_gpus"] == registered.contention.cluster_gpus == 4
    assert (m.a.holdings.topology.gpus, shown["t_id_s"]) == (8, 4800.0 / 4)


@pytest.mark.parametrize(
    ("held", "states", "estimate", "said"),
    [
        (0, ["running", "done", "running"], {"start_s": None}, "jobs: 1 done, 2 running; waits: no offer"),
        (0, [], {"start_s": [1900.0, 2500.0, 4600.0]}, "waits: no offer; starts in ~25 min (15 min to 60 min)"),
        (4, [], {"end_s": [4600.0, 13000.0, None]}, "4 GPUs; ends in ~3 h 20 min (60 min or more)"),
        (1, ["slow"], {"end_s": [None, None, None]}, "jobs: 1 slow; 1 GPU; j0: slow"),
    ],
)
def test_an_app_in_one_line(held: int, states: list[str], estimate: dict[str, Any], said: str) -> None:
    jobs = [{"job_id": f"j{i}", "state": s, "note": "slow" if s == "slow" else ""} for i, s in enumerate(states)]
    found = {"now_s": 1000.0, "app": {"gpus_held": held}, "jobs": jobs, "reason": {"sentence": "no offer"}}
    assert line({**found, "estimate": estimate}) == said


def test_the_ideal_time_counts_measured_speeds_as_the_agent_does() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    m.nodes = tuple(
        dataclasses.replace(n, attributes={"gpu_type": t}) for n, t in zip(m.nodes, ("k80", "v100"), strict=True)
    )
    m.send(m.snapshot())
    m.app("a", 4, work=4 * 3600.0, speedups={"k80": 1.0, "v100": 4.0})
    m.run(2)
    found = rho_terms(m.a, "a", m.now)
    assert found is not None
    assert found["t_id_s"] == 3600.0 / 2.5, "the mean speed of the cluster's GPUs"
