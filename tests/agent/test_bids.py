"""The rows of an Agent's bids, and that the Arbiter accepts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.auction.bid_validation import validate_bid
from pycontrol.fairness.bidding import ROWS_MAX, Bidder, OwnGang, capacity
from pycontrol.fairness.gang_rho import AppWork, PhaseWork
from pycontrol.model.auction import AppView, Demand, Snapshot, gang_of
from pycontrol.model.topology import Machine, Scope, Topology
from submarine_patch.agent.bids import message

PRIOR = (1.0, 1.1, 1.3)
TOPOLOGY = Topology.of([Machine("a1", "a", 4), Machine("a2", "a", 4), Machine("b1", "b", 2), Machine("b2", "b", 2)])


def bidder(
    jobs: int = 6,
    gang_gpus: int = 2,
    kept: int = 0,
    ending: tuple[OwnGang, ...] = (),
    offered: dict[str, int] | None = None,
    slowdown: tuple[float, float, float] = PRIOR,
    restart_s: float = 10.0,
    work: float = 1.0,
) -> Bidder:
    phases = (PhaseWork((600.0 * work,) * jobs), PhaseWork((1200.0 * work,) * max(1, jobs // 3)))
    app = AppWork(phases, gang_gpus, 60.0, 400.0)
    free = offered if offered is not None else {h: m.gpus for h, m in TOPOLOGY.machines.items()}
    slowdowns = dict(zip(Scope, slowdown, strict=True))
    return Bidder(app, [1.0] * kept, ending, free, jobs - kept, slowdowns, TOPOLOGY, restart_s, 600.0)


def test_more_gangs_and_closer_ones_are_worth_more() -> None:
    bid = bidder().bid("app")
    by_shape = {(r.new_gangs, r.scope): r.rho for r in bid.rows}
    assert by_shape[2, Scope.MACHINE] < by_shape[1, Scope.MACHINE] < bid.rho_nothing
    assert by_shape[2, Scope.MACHINE] < by_shape[2, Scope.RACK] < by_shape[2, Scope.CLUSTER]


@pytest.mark.parametrize("restart_s", [10.0, 599.0, 600.0, 601.0, 3000.0])
def test_an_app_without_gpus_bids_even_if_a_start_takes_long(restart_s: float) -> None:
    """It has to start eventually."""
    bid = bidder(restart_s=restart_s).bid("app")
    assert any(row.new_gangs for row in bid.rows)
    assert bid.restart_s == restart_s
    assert message(bid, "r").restart_s == restart_s


@pytest.mark.parametrize(("gang_gpus", "closest"), [(4, Scope.MACHINE), (6, Scope.RACK), (12, Scope.CLUSTER)])
def test_an_app_that_fits_no_machine_bids_with_any_amount_of_work(gang_gpus: int, closest: Scope) -> None:
    """Waiting would not place it closer together than the machines allow."""
    bid = bidder(jobs=1, gang_gpus=gang_gpus, work=1e6).bid("app")
    assert [(row.new_gangs, row.scope) for row in bid.rows] == [(1, closest)]


def test_keeping_a_gang_is_worth_more_than_a_new_one() -> None:
    own = OwnGang(gang_of({"a1": 2}), 1.0)
    bid = bidder(ending=(own,)).bid("app")
    kept = next(r.rho for r in bid.rows if len(r.keep) == 1 and not r.new_gangs)
    moved = next(r.rho for r in bid.rows if not r.keep and r.new_gangs == 1)
    assert kept < moved


def test_of_scopes_with_equal_rho_only_the_widest_has_a_row() -> None:
    assert {r.scope for r in bidder(slowdown=(1.0, 1.0, 1.0)).bid("app").rows} == {Scope.CLUSTER}


def test_a_gang_larger_than_any_machine_is_bid_for_across_machines() -> None:
    assert {r.scope for r in bidder(jobs=1, gang_gpus=6).bid("app").rows} == {Scope.RACK, Scope.CLUSTER}


def test_the_bid_is_empty_if_no_gpu_can_be_used() -> None:
    assert not bidder(jobs=2, kept=2).bid("app").rows
    assert not bidder(offered={"a1": 1}).bid("app").rows


def test_a_bid_survives_the_wire() -> None:
    bid = bidder(ending=(OwnGang(gang_of({"a1": 2}), 1.0),)).bid("app")
    sent = message(bid, "r1")
    assert (sent.round_id, sent.rho_nothing) == ("r1", bid.rho_nothing)
    assert [(r.rho, len(r.keep), r.new_gangs, r.scope) for r in sent.rows] == [
        (r.rho, len(r.keep), r.new_gangs, int(r.scope)) for r in bid.rows
    ]


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 3),
    st.lists(st.sampled_from(["a1", "a2", "b1", "b2"]), max_size=3),
    st.dictionaries(st.sampled_from(["a1", "a2", "b1", "b2"]), st.integers(0, 4)),
)
def test_every_bid_is_one_that_the_arbiter_accepts(
    jobs: int, gang_gpus: int, kept: int, own: list[str], free: dict[str, int]
) -> None:
    kept = min(kept, jobs)
    ending = tuple(OwnGang(gang_of({h: gang_gpus}), 1.0) for h in own)
    offered = dict(free)
    for h in own:
        offered[h] = offered.get(h, 0) + gang_gpus
    made = bidder(jobs, gang_gpus, kept, ending, offered).bid("app")
    assert len(made.rows) <= ROWS_MAX
    view = AppView(
        "app",
        "q",
        1.0,
        Demand(gang_gpus, jobs),
        ending_gangs=tuple(g.gang for g in ending),
        retained_gpus=kept * gang_gpus,
    )
    snapshot = Snapshot("r", 0.0, TOPOLOGY, offered, (view,))
    assert validate_bid(made, snapshot, view) == ""
    for row in made.rows:
        left = dict(offered)
        for gang in row.keep:
            for host, n in gang:
                left[host] -= n
        assert row.new_gangs <= capacity(left, gang_gpus, row.scope, TOPOLOGY)
        assert row.rho < made.rho_nothing
