"""The GPU indices of a gang: one slot where one has room, whole slots kept for others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.arbiter.views.gpu_index import choose, pick
from pycontrol.config import ConfigError, load_topology
from pycontrol.model.topology import Gpu
from tests.arbiter.mini import Mini


@given(st.sets(st.integers(0, 15), min_size=1), st.integers(0, 5), st.data())
def test_a_gang_gets_as_few_slots_as_possible(indices: set[int], slot_gpus: int, data: st.DataObject) -> None:
    free = [Gpu("n", i) for i in indices]
    n = data.draw(st.integers(1, len(free)))
    found = choose(free, n, slot_gpus)
    assert len(found) == len(set(found)) == n
    assert set(found) <= set(free)
    if slot_gpus < 2:
        assert found == sorted(free)[:n]
        return
    sizes = sorted((sum(g.index // slot_gpus == k for g in free) for k in range(16)), reverse=True)
    fewest = next(k for k in range(1, 17) if sum(sizes[:k]) >= n)
    assert len({g.index // slot_gpus for g in found}) == fewest


def test_a_single_gpu_leaves_whole_slots_whole() -> None:
    free = [Gpu("n", i) for i in (0, 1, 3, 4, 5)]
    assert choose(free, 1, 2) == [Gpu("n", 3)]
    assert choose(free, 2, 2) == [Gpu("n", 0), Gpu("n", 1)]
    assert choose(free, 3, 2) == [Gpu("n", 0), Gpu("n", 1), Gpu("n", 3)]


@given(
    st.sets(st.integers(0, 15)),
    st.dictionaries(st.integers(0, 15), st.integers(1, 3)),
    st.integers(0, 5),
    st.integers(1, 17),
)
def test_a_gang_that_waits_gets_few_slots_and_waits_no_longer(
    free: set[int], coming: dict[int, int], slot_gpus: int, n: int
) -> None:
    at_s = {i: float(t) for i, t in coming.items() if i not in free} | dict.fromkeys(free, 0.0)
    later = sorted((t, Gpu("n", i)) for i, t in at_s.items() if t)
    found = pick([Gpu("n", i) for i in sorted(free)], later, n, slot_gpus)
    assert len(set(found)) == len(found) == min(n, len(at_s))
    if not found:
        return
    last_s = sorted(at_s.values())[len(found) - 1]
    assert max(at_s[g.index] for g in found) == last_s, "as soon as any that many are free"
    if slot_gpus > 1 and len(found) == n:
        known = [i for i, t in at_s.items() if t <= last_s]
        sizes = sorted((sum(i // slot_gpus == k for i in known) for k in range(16)), reverse=True)
        assert len({g.index // slot_gpus for g in found}) == next(k for k in range(1, 17) if sum(sizes[:k]) >= n)


def test_a_gang_follows_the_leases_of_one_slot() -> None:
    coming = [(60.0, Gpu("n", i)) for i in (1, 2, 3)]
    assert pick([Gpu("n", 0)], coming[1:], 2, 2) == [Gpu("n", 2), Gpu("n", 3)], "not 0 and 2"
    assert pick([Gpu("n", 0)], coming[1:], 2, 0) == [Gpu("n", 0), Gpu("n", 2)]
    assert pick([Gpu("n", 0)], [(60.0, Gpu("n", 1)), (90.0, Gpu("n", 3))], 2, 2) == [Gpu("n", 0), Gpu("n", 1)]


FILE = "racks: [{name: a, machines: [{host: n1, gpus: 4, slot_gpus: SLOT}]}]\n"


def test_rounds_grant_slots_of_the_topology_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(FILE.replace("SLOT", "3"))
    with pytest.raises(ConfigError, match="slot_gpus is 3, which does not divide its 4 GPUs"):
        load_topology(file)
    file.write_text(FILE.replace("SLOT", "2"))
    m = Mini(nodes=(("n1", 4),), topology=load_topology(file))
    m.app("one", gang=1)
    m.run(20)
    m.app("pair", gang=2)
    m.run(40)
    held = {a: sorted(g.index for g in m.held(a)) for a in ("one", "pair")}
    assert held == {"one": [0], "pair": [2, 3]}, "not 1 and 2, the lowest free ones"
