"""The indexed pool against the direct way to place a gang."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.auction.placing import FreeIndex, place_gang, take
from pycontrol.lab.policies.variants import Unpacked
from pycontrol.model.auction import Gang, gang_gpus
from pycontrol.model.topology import Machine, Scope, Topology

TOP = Topology.of(
    Machine(f"n{i}", "abc"[i % 3], n, "V100" if i < 4 else "K80") for i, n in enumerate([4, 4, 2, 2, 1, 3])
)
steps = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(list(Scope)), st.sampled_from(["", "V100", "K80"]), st.booleans()),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_it_places_as_place_gang_does(drawn: list[tuple[int, Scope, str, bool]]) -> None:
    left = {h: m.gpus for h, m in TOP.machines.items()}
    pool, taken = FreeIndex(left, TOP), []
    for size, scope, kind, back in drawn:
        of_kind = {h: n for h, n in left.items() if kind in ("", TOP.machines[h].gpu_type)}
        gang = place_gang(size, scope, of_kind, TOP)
        assert pool.place(size, scope, kind) == gang
        assert pool.has_place(size, scope, kind) == (gang is not None)
        if gang is not None:
            pool.take(gang)
            take(left, [gang])
            taken.append(gang)
        if back and taken:
            again: Gang = taken.pop(0)
            pool.give(again)
            left.update({h: left[h] + n for h, n in again})
        assert pool.gpus == sum(left.values())
        assert pool.left == left


@settings(max_examples=200, deadline=None)
@given(steps, st.permutations(sorted(TOP.machines)))
def test_without_packing_the_first_hosts_are_filled(
    drawn: list[tuple[int, Scope, str, bool]], hosts: list[str]
) -> None:
    order = {h: k for k, h in enumerate(hosts)}
    left = {h: m.gpus for h, m in TOP.machines.items()}
    pool = Unpacked(left, TOP, order)
    for size, scope, kind, back in drawn:
        of_kind = {h: n for h, n in left.items() if kind in ("", TOP.machines[h].gpu_type)}
        gang = pool.place(size, scope, kind)
        assert (gang is None) == (place_gang(size, scope, of_kind, TOP) is None)
        assert pool.has_place(size, scope, kind) == (gang is not None)
        if gang is None:
            continue
        assert gang_gpus(gang) == size
        used = sorted((h for h, _ in gang), key=order.__getitem__)
        assert TOP.scope_of(used) <= scope
        before = [h for h in hosts[: order[used[-1]]] if of_kind.get(h)]
        if scope is Scope.RACK:
            before = [h for h in before if TOP.rack_of(h) == TOP.rack_of(used[0])]
        if scope is not Scope.MACHINE:
            assert all(h in used for h in before), "no host is passed over"
            assert all(n == of_kind[h] for h, n in gang if h != used[-1])
        pool.take(gang)
        if back:
            pool.give(gang)
        else:
            take(left, [gang])
