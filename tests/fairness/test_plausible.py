"""The range of rho: what the Agents' own code computes lies in it, and a lie is held at its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.agentlogic import offers
from pycontrol.agentlogic.offers import RunningGang
from pycontrol.fairness.bidding import app_work, mean_speed, speed_of
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gang_rho import PhaseWork
from pycontrol.fairness.plausible import TOLERANCE, Standing, app_left, held_bid, rho_range, slowdowns_of, within
from pycontrol.model.auction import Demand, as_gang
from pycontrol.model.topology import Gpu, Machine, Scope, Topology

CLUSTER = Topology.of([Machine(f"n{k}", f"r{k // 3}", 4, "fast" if k % 2 else "slow") for k in range(6)])
JOBS = st.lists(st.floats(1, 1e5), min_size=1, max_size=6).map(tuple)


@st.composite
def standings(draw: st.DrawFn) -> tuple[Standing, float, object]:
    """An app with some gangs that train, some on offer; (what the Arbiter knows, the Agent's rho, its bid)."""
    gang, most = draw(st.sampled_from([(1, 1), (2, 2), (4, 4), (1, 4), (2, 4)]))
    phases = tuple(draw(st.lists(JOBS, min_size=1, max_size=3)))
    rack = draw(st.floats(1, 2))
    slowdown = (1.0, rack, rack * draw(st.floats(1, 1.5)))
    speedups = draw(st.sampled_from([{}, {"slow": 1.0, "fast": 4.0}]))
    done, elapsed_s, n_avg = draw(st.floats(0, 1e5)), draw(st.floats(0, 1e5)), draw(st.floats(1, 9))
    widest, lease_s, restart_s = max(map(len, phases)), 600.0, draw(st.floats(0, 200))
    left = sum(map(sum, phases))
    demand = Demand(gang, len(phases[0]), most, left, done + left, done, slowdown=slowdown, speedups=speedups)
    hosts = draw(st.permutations(sorted(CLUSTER.machines)))[: min(3, len(phases[0]))]
    split = draw(st.booleans()) and gang % 2 == 0
    placed = []
    for k, host in enumerate(hosts):
        other = hosts[(k + 1) % len(hosts)] if split else host
        placed.append(
            tuple(Gpu(host if i % 2 else other, 2 * (other != host) + i // 2 + 2 * (i % 2)) for i in range(gang))
        )
    staying, ending = placed[: draw(st.integers(0, len(placed)))], placed
    ending = [g for g in placed if g not in staying]
    known = draw(st.integers(0, len(staying)))  # the others may not train yet
    speed, elastic = mean_speed(speedups, CLUSTER), None
    efficiency = {gang: 1.0, 2 * gang: 0.9, 4 * gang: 0.8}
    if most > gang:
        elastic = Elastic(gang, most, slowdown, restart_s, efficiency)
    work = app_work(
        tuple(map(PhaseWork, phases)), gang, widest, 24, n_avg, elapsed_s, done, speed, most if elastic else 0
    )
    running = [RunningGang(g, _slowdown(g, demand)) for g in (*staying[:known], *ending)]
    held = {g for gang_ in placed for g in gang_}
    away = frozenset(g for gang_ in ending for g in gang_)
    rho = offers.rho(work, running, held, away, lease_s)
    bid = offers.bid_for(
        "a",
        work,
        running,
        held,
        away,
        len(phases[0]),
        {f"n{k}": 4 for k in range(6)},
        dict(zip(Scope, slowdown, strict=True)),
        CLUSTER,
        restart_s,
        lease_s,
        speedups,
        False,
        elastic,
    )
    seen = app_left(phases, demand, 24, n_avg, widest * max(gang, most), elapsed_s, speed)
    gangs = [slowdowns_of(as_gang(g), demand, CLUSTER) for g in staying]
    certain = () if elastic else tuple(sorted(s for _, s in gangs[:known]))
    return Standing(seen, demand, certain, tuple(sorted(s for s, _ in gangs)), CLUSTER, lease_s), rho, bid


def _slowdown(gpus: tuple[Gpu, ...], demand: Demand) -> float:
    hosts = {g.host for g in gpus}
    return demand.slowdown[CLUSTER.scope_of(hosts) - 1] / speed_of(demand.speedups, hosts, CLUSTER)


@given(standings())
def test_an_honest_agents_figures_are_never_changed(made) -> None:
    x, rho, bid = made
    assert within(rho, rho_range(x)) == rho
    assert held_bid(x, bid) is bid


@given(standings(), st.sampled_from([0.1, 0.5, 2.0, 10.0]))
def test_a_lie_is_held_within_the_range(made, k: float) -> None:
    x, rho, bid = made
    low, high = rho_range(x)
    assert low / TOLERANCE <= within(rho * k, (low, high)) <= high * TOLERANCE
    lie = replace(bid, rho_nothing=bid.rho_nothing * k, rows=tuple(replace(r, rho=r.rho * k) for r in bid.rows))
    held = held_bid(x, lie)
    again = held_bid(x, held)
    assert again is held
    if x.certain == x.possible and x.work.job_gpus_max == 0 and not x.demand.speedups and not bid.restart_s:
        for said, used in zip(bid.rows, held.rows, strict=True):
            assert used.rho == pytest.approx(said.rho, rel=TOLERANCE - 1 + 1e-6)


def test_a_forged_number_of_new_gangs_costs_no_time() -> None:
    demand = Demand(1, 2, 1, 100.0, 100.0)
    work = app_left(((50.0, 50.0),), demand, 24, 1.0, 2, 0.0, 1.0)
    x = Standing(work, demand, (), (), CLUSTER, 600.0)
    bid = offers.bid_for("a", work, [], (), frozenset(), 2, {"n0": 4}, {Scope.MACHINE: 1.0}, CLUSTER, 0.0, 600.0)
    forged = replace(bid, rows=(replace(bid.rows[0], new_gangs=1 << 40, rho=1e-6),))
    assert held_bid(x, forged).rows[0].rho == pytest.approx(work.t_id_s and 50.0 / work.t_id_s)
