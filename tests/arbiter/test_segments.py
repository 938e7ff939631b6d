"""Gangs in equal segments, through rounds of all policies, in cells, and in what people read."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pycontrol.arbiter.ledger.facts import LeaseGranted
from pycontrol.auction.placing import divides
from pycontrol.model.auction import as_gang, segments
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies.registry import names
from pycontrol.queries.explain import controls
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.test_controls import world
from tests.arbiter.world import World

EVER = 1e6
CASES = 250
TWO_RACKS = [("a1", "a", 4), ("a2", "a", 4), ("b1", "b", 4), ("b2", "b", 4)]


def gangs(w: World) -> dict[tuple[str, str], set[Gpu]]:
    """(app, grant) -> the GPUs that were granted."""
    found: dict[tuple[str, str], set[Gpu]] = {}
    for fact in w.journal:
        if isinstance(fact, LeaseGranted):
            found.setdefault((fact.app_id, fact.grant_id), set()).update(fact.gpus)
    return found


@pytest.mark.parametrize("policy", names())
def test_each_gang_that_is_granted_has_its_segments(policy: str) -> None:
    granted = 0
    for seed in range(4):
        rng = random.Random(seed)
        machines = [(f"n{k}", f"r{k % 3}", rng.choice([2, 4, 4])) for k in range(6)]
        w = World(policy, seed, machines=machines)
        wanted = {}
        for k in range(6):
            count, each = rng.choice([(2, 2), (2, 1), (3, 2), (1, 3), (2, 4)])
            members = segments(count * each, count, rng.choice([Scope.MACHINE, Scope.RACK])) if k % 3 else ()
            scope = rng.choice([Scope.CLUSTER, Scope.CLUSTER, Scope.RACK])
            wanted[f"app{k}"] = members
            wishes: dict[str, Any] = {"members": members, "scope": scope}
            come = functools.partial(
                w.add_app, f"app{k}", count * each, rng.randint(1, 3), rng.randint(20, 300), **wishes
            )
            w.at(10 * k, come)
        w.run(w.now + 400)
        for (app_id, _), gpus in gangs(w).items():
            members = wanted[app_id]
            if members:
                assert divides(members, as_gang(gpus), w.arbiter.holdings.topology), (seed, app_id, gpus)
                granted += 1
    assert granted > 10


@pytest.mark.parametrize("policy", ["isonomy", "themis", "tiresias", "oef"])
def test_a_gang_waits_rather_than_split_a_segment(policy: str) -> None:
    """Three GPUs are free on each of two machines of a rack, and two in the other rack."""
    w = World(policy, machines=TWO_RACKS)
    for k, (host, n) in enumerate((("a1", 1), ("a2", 1), ("b1", 3), ("b2", 3))):
        w.add_foreign(f"other{k}", n, 0)
        w.ask_more(f"other{k}", n, 1, (host,))
    w.wait(20)
    w.add_app("fours", 8, 1, EVER, members=(4, 4))
    w.add_app("threes", 6, 1, EVER, members=(3, 3), scope=Scope.RACK)
    w.wait(20)
    assert w.places("fours") == {}
    assert {h: len(x) for h, x in w.places("threes").items()} == {"a1": 3, "a2": 3}
    w.finish(w.agents["threes"])
    w.add_app("racks", 6, 1, EVER, members=(-3, -3))
    w.wait(20)
    on = w.places("racks")
    assert sum(map(len, on.values())) in (0, 6)
    assert on.keys() <= {"a1", "a2"}, "two free GPUs of the other rack are no segment"


def test_explain_says_which_segments_are_asked_for_and_why_they_never_fit() -> None:
    w = World("isonomy", machines=TWO_RACKS)
    w.add_app("fives", 10, 1, EVER, members=(5, 5))
    w.wait(20)
    assert controls(w.arbiter, "fives")["segments"] == "2 x 5 GPUs, each on one machine"
    why = "10 GPUs in one gang: 2 x 5 GPUs, each on one machine; at most 4 on a machine"
    assert reason(w.arbiter, "fives", w.now) == Reason(Pending.NO_MACHINE_LARGE_ENOUGH, why)
    w.add_app("one", 1, 1, EVER)
    w.wait(20)
    assert controls(w.arbiter, "one")["segments"] == ""


@pytest.mark.parametrize("policy", ["isonomy", "themis", "tiresias"])
def test_own_cells_serve_segments_on_machines_and_in_racks(policy: str) -> None:
    w = world("{root.a: {node: 2}, root.b: {node: 2}}", policy)
    w.add_app("threes", 6, 1, EVER, "root.a", members=(3, 3))
    w.add_app("racks", 4, 1, EVER, "root.b", members=(-2, -2))
    w.wait(60)
    assert sorted(len(x) for x in w.places("threes").values()) == [3, 3]
    assert sum(map(len, w.places("racks").values())) == 4
    assert all(x.guaranteed for app_id in ("threes", "racks") for x in w.arbiter.durable.leases.of(app_id))


def in_cells(rng: random.Random) -> tuple[World, set[Gpu], Callable[[Gpu], object]]:
    """Three to five machines with switches, of which some GPUs are bad; the good ones; a GPU's switch."""
    per, switches = rng.choice([(2, 2), (3, 2), (2, 3), (4, 2)])
    hosts = [f"n{k}" for k in range(rng.randint(2, 4))]
    cells = "".join(f"  - {{type: node, hosts: [{h}]}}\n" for h in hosts)
    text = f"""
cell_types:
  switch: {{child: gpu, count: {per}}}
  node: {{child: switch, count: {switches}, node_level: true}}
physical_cells:
{cells}
virtual_clusters: {{root.a: {{node: {len(hosts)}}}}}
"""
    machines = [(h, rng.choice("xy"), per * switches) for h in hosts]
    w = World("isonomy", supply=text, machines=machines)
    good = {Gpu(h, k) for h, _, n in machines for k in range(n)}
    for host, _, n in machines:
        bad = [k for k in range(n) if rng.random() < 0.35]
        good -= {Gpu(host, k) for k in bad}
        w.mark(host, *bad)
    return w, good, lambda gpu: (gpu.host, gpu.index // per)


def can_lie(count: int, each: int, good: Iterable[Gpu], cell_of: Callable[[Gpu], object]) -> bool:
    """Whether so many segments have cells, by trying everything."""
    rooms = Counter(map(cell_of, good))
    return any(
        all(n * each <= rooms[cell] for cell, n in Counter(where).items())
        for where in itertools.combinations_with_replacement(sorted(rooms, key=str), count)
    )


def starts(seed: int, within: str, queue: str) -> bool:
    """Whether a gang in random segments starts on a random cluster, which trying everything confirms."""
    rng = random.Random(seed)
    w, good, switch_of = in_cells(rng)
    rack_of = w.arbiter.holdings.topology.rack_of
    count, each = rng.choice([(2, 2), (2, 1), (3, 2), (1, 3), (2, 3), (4, 2)])
    scope = rng.choice(list(Scope)) if within else Scope.CLUSTER
    members = segments(count * each, count, Scope.MACHINE if within else Scope.RACK)
    w.add_app("me", count * each, 1, EVER, queue, members=members, within=within, scope=scope)
    w.wait(35)
    got = {Gpu(h, k) for h, found in w.places("me").items() for k in found}
    assert w.history.count(("grant", "me")) <= 1, f"{seed}: it restarts at the end of a lease of its own"
    wide = {Scope.MACHINE: lambda g: g.host, Scope.RACK: lambda g: rack_of(g.host), Scope.CLUSTER: lambda g: ""}
    rooms = grouped((wide[scope](gpu), gpu) for gpu in good).values()
    cell_of = switch_of if within else wide[Scope.RACK]
    assert bool(got) == any(can_lie(count, each, room, cell_of) for room in rooms), seed
    assert not got or (len(got) == count * each and can_lie(count, each, got, cell_of)), seed
    return bool(got)


@pytest.mark.parametrize("within", ["switch", ""])
@pytest.mark.parametrize("queue", ["root.a", "root.z"])
def test_segments_in_cells_start_where_trying_everything_finds_a_place(within: str, queue: str) -> None:
    """Each within one switch, or in one rack, on own cells and on idle ones."""
    started = sum(starts(seed, within, queue) for seed in range(CASES))
    assert CASES / 5 < started < CASES
