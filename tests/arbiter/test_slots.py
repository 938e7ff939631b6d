"""The GPU indices of a gang: one slot where one has room, whole slots kept for others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.arbiter.slots import choose
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
