"""Apps without an Agent that ask for containers of several sizes: one by one, or as one gang."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.auction.placing import pack
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container
from pycontrol.model.reasons import Pending
from pycontrol.model.tags import GANG as GANG_TAG
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.mini import Mini
from tests.arbiter.world import World

TWO = (("n1", "r", 4), ("n2", "r", 4))
CELLS = """
levels: {pair: 2, node: 2}
hosts: [n1, n2]
virtual_clusters: {root.a: {node: 1, pair: 1}}
"""
POLICIES = ("isonomy", "themis", "tiresias", "worst_first", "oef", "drf", "gandiva")


def world(policy: str = "isonomy", cells: bool = False, machines: Sequence[tuple[str, str, int]] = TWO) -> World:
    return World(policy, supply=CELLS if cells else None, machines=machines, lease_s=60, lead_s=6, f=0.0)


def sizes(w: World, app_id: str) -> list[int]:
    return sorted(len(c.gpus) for c in w.of(app_id))


def next_attempt(w: World, app_id: str) -> None:
    """Lets the application master end and another start."""
    old = w.apps[app_id].attempt_id
    new = f"{old.rpartition('_')[0]}_{int(old.rpartition('_')[2]) + 1}"
    for key in [key for key in w.asks if key[0] == old]:
        del w.asks[key]
    w.submit(ev.AttemptRemoved(old, app_id))
    w.apps[app_id] = dataclasses.replace(w.apps[app_id], attempt_id=new)
    w.submit(ev.AttemptAdded(new, app_id))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cells", [False, True])
def test_an_app_gets_containers_of_each_size_that_it_asks_for(policy: str, cells: bool) -> None:
    w = world(policy, cells)
    w.add_foreign("a", 4, 1, "root.a", [(1, 2)])
    w.run(30)
    assert sizes(w, "a") == [1, 1, 4]
    assert all(x.guaranteed for x in w.arbiter.durable.leases.of("a"))


@pytest.mark.parametrize("policy", POLICIES)
def test_small_containers_do_not_wait_for_a_large_one(policy: str) -> None:
    w = world(policy, machines=(*TWO, ("n3", "r", 4)))
    w.add_foreign("whole", 4, 1)
    w.add_foreign("other", 3, 2)
    w.run(10)
    w.add_foreign("a", 4, 1, more=[(1, 2)])
    w.run(30)
    assert sizes(w, "a") == [1, 1]
    w.end_app("whole")
    w.run(60)
    assert sizes(w, "a") == [1, 1, 4]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cells", [False, True])
def test_containers_of_a_gang_start_together(policy: str, cells: bool) -> None:
    w = world(policy, cells)
    w.add_foreign("other", 2, 1, "root.a")
    w.run(10)
    started: Counter[float] = Counter()
    runs = w.container_runs

    def container_runs(c: Container) -> None:
        started.update([w.now] if c.app_id == "a" else [])
        runs(c)

    w.container_runs = container_runs  # type: ignore[method-assign]
    w.add_foreign("a", 4, 1, "root.a", [(1, 4)], [GANG_TAG])
    w.run(40)
    assert sizes(w, "a") == []
    w.end_app("other")
    w.run(80)
    assert sizes(w, "a") == [1, 1, 1, 1, 4]
    assert len(started) <= 1
    w.add_foreign("b", 2, 1, "root.a", [(1, 2)], [GANG_TAG])
    w.end_app("a")
    w.run(120)
    assert sizes(w, "b") == [1, 1, 2]


def test_no_container_of_a_gang_is_split() -> None:
    """Three GPUs on each of two machines are six, but no four on one."""
    w = world()
    w.add_foreign("one", 1, 1)
    w.run(10)
    w.add_foreign("two", 4, 1)
    w.run(20)
    w.end_app("one")
    w.add_foreign("three", 2, 1)
    w.run(30)
    w.add_foreign("a", 4, 1, more=[(1, 1)], tags=[GANG_TAG])
    w.run(60)
    assert sizes(w, "a") == []
    w.end_app("two")
    w.run(90)
    assert sizes(w, "a") == [1, 4]


def test_a_gang_waits_until_all_its_containers_are_asked_for() -> None:
    w = world()
    w.add_foreign("a", 2, 1, tags=[f"{GANG_TAG}=3"])
    w.run(10)
    assert sizes(w, "a") == []
    why = reason(w.arbiter, "a", w.now)
    assert (why.code, why.detail) == (Pending.GANG_INCOMPLETE, "2 more, as its tag isonomy.gang says")
    w.ask_more("a", 1, 2)
    w.run(20)
    assert sizes(w, "a") == [1, 1, 2]
    w.container_ends(next(iter(w.containers)))
    w.ask_more("a", 1, 1)
    w.run(40)
    assert len(sizes(w, "a")) == 3


@pytest.mark.parametrize("kept", [False, True])
def test_a_new_attempt_waits_for_its_gang_unless_containers_were_kept_for_it(kept: bool) -> None:
    w = world()
    w.add_foreign("a", 1, 3, tags=[f"{GANG_TAG}=3"])
    w.run(10)
    assert sizes(w, "a") == [1, 1, 1]
    for container_id in list(w.containers)[kept:]:
        w.container_ends(container_id)
    next_attempt(w, "a")
    w.ask_more("a", 1, 1)
    w.run(20)
    assert sizes(w, "a") == [1, 1] * kept
    w.ask_more("a", 1, 2 - kept)
    w.run(30)
    assert sizes(w, "a") == [1, 1, 1]


def test_an_attempt_that_a_failover_tells_again_waits_for_no_gang() -> None:
    m = Mini()
    app = m.foreign("a", 1, 1, tags=[f"{GANG_TAG}=2"])
    m.send(m.snapshot([app], [Container("c1", "a", "n1:1", (Gpu("n1", 0),), "g1", attempt_id=app.attempt_id)]))
    m.run(5)
    m.send(ev.ContainerGone("c1"))
    m.run(5)
    m.send(dataclasses.replace(m.snapshot([], []), ready=False, rm_life="another"))  # it has recovered nothing yet
    m.send(ev.AppAdded(dataclasses.replace(app, attempt_id="")))
    m.send(ev.AttemptAdded(app.attempt_id, "a"))
    m.send(ev.ClusterReady())
    m.run(5)
    m.send(ev.AskChanged(Ask(app.attempt_id, "a", 0, 1, 1)))
    m.run(600)
    assert len(m.held("a")) == 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_masters_own_container_starts_before_the_gang_and_counts_for_none(attempts: int) -> None:
    m = Mini()
    app = m.foreign("a", 1, 0, tags=[f"{GANG_TAG}=2"])
    for n in range(1, attempts + 1):
        attempt = f"{app.app_id}_{n}"
        m.send(ev.AttemptAdded(attempt, "a"))
        m.send(ev.AskChanged(Ask(attempt, "a", 0, 1, 1, master=True)))
        m.run(5)
        (place,) = m.places()
        master = m.up(place, f"container_1_0001_0{n}_000001")
        m.send(ev.AskChanged(Ask(attempt, "a", 0, 1, 0, master=True)))
        m.run(5)
        if n < attempts:
            m.send(ev.ContainerGone(master.container_id))
    m.send(ev.AskChanged(Ask(attempt, "a", 0, 1, 1)))
    m.run(5)
    assert not m.places()
    assert reason(m.a, "a", m.now).detail == "1 more, as its tag isonomy.gang says"
    m.send(ev.AskChanged(Ask(attempt, "a", 0, 1, 2)))
    m.run(5)
    assert len(m.places()) == 2


def test_an_attempt_with_a_container_that_only_a_snapshot_told_of_waits_for_no_gang() -> None:
    m = Mini()
    app = m.foreign("a", 1, 1, tags=[f"{GANG_TAG}=2"])
    m.send(ev.AttemptAdded(app.attempt_id, "a"))
    m.send(m.snapshot([app], [Container("c1", "a", "n1:1", (Gpu("n1", 0),), "g1", attempt_id=app.attempt_id)]))
    m.run(5)
    m.send(ev.ContainerGone("c1"))
    m.send(ev.AskChanged(Ask(app.attempt_id, "a", 0, 1, 1)))
    m.run(5)
    assert len(m.held("a")) == 1


@pytest.mark.parametrize("tag", [GANG_TAG, f"{GANG_TAG}=x", f"{GANG_TAG}=-1", f"{GANG_TAG}=0"])
def test_a_tag_without_a_number_means_all_asked_containers(tag: str) -> None:
    w = world()
    w.add_foreign("a", 2, 1, more=[(1, 1)], tags=[tag])
    w.run(20)
    assert sizes(w, "a") == [1, 2]


def test_a_size_is_asked_for_only_where_it_may_start() -> None:
    w = world()
    w.add_foreign("a", 1, 1)
    w.run(10)
    w.add_foreign("b", 4, 1)
    w.run(20)
    w.add_foreign("c", 2, 1)  # n2 has no room now, n1 one GPU
    w.run(30)
    held = {h: 4 - len(w.arbiter.gpus.free.on(h)) for h in ("n1", "n2")}
    full = next(h for h, n in held.items() if n == 4)
    w.ask_more("a", 3, 1, (full,))
    w.ask_more("a", 1, 1)
    w.run(50)
    assert sizes(w, "a") == [1, 1]
    w.end_app("b")
    w.run(80)
    assert sizes(w, "a") == [1, 1, 3]
    assert {g.host for c in w.containers.values() if len(c.gpus) == 3 for g in c.gpus} == {full}


def test_an_app_without_an_agent_owns_cells_of_its_queue() -> None:
    """The machines of a virtual cluster are not hosts: no ask matched them, so the app could only borrow."""
    w = world(cells=True)
    w.add_foreign("stranger", 1, 8, "root.x")
    w.run(10)
    w.add_foreign("a", 4, 1, "root.a", [(2, 1)])
    w.run(40)
    assert sizes(w, "a") == [2, 4]
    assert all(x.guaranteed for x in w.arbiter.durable.leases.of("a"))


@given(st.lists(st.integers(1, 4), max_size=5), st.lists(st.integers(0, 6), max_size=4))
def test_members_of_a_gang_are_packed_where_possible(members: list[int], rooms: list[int]) -> None:
    members.sort(reverse=True)
    free = {f"n{k}": n for k, n in enumerate(rooms)}
    found = pack(members, free)
    assert (found is not None) == fits(members, rooms)
    used = Counter[str]()
    for host, n in zip(found or (), members, strict=False):
        used[host] += n
    assert all(n <= free[host] for host, n in used.items())


def fits(members: list[int], rooms: list[int]) -> bool:
    if not members:
        return True
    first, *rest = members
    tries = ([*rooms[:k], n - first, *rooms[k + 1 :]] for k, n in enumerate(rooms) if n >= first)
    return any(fits(rest, left) for left in tries)
