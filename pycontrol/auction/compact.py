"""The compact form of an auction: a few capacity rows ("dims") for all GPUs, independent of the number of machines.

If the sizes of gangs divide each other, gangs fit on machines if and only if, for each size s, the gangs of s GPUs and
more, counted in units of s, are at most the sum of floor(free / s) over the machines: packing the largest first leaves
no gap that matters. For other sizes, for gangs in racks, and around gangs that are kept, these conditions are only
necessary, so a choice must be packed before it counts.

If gangs name a GPU type, each type has its own dims, and a rack with several types counts as several racks: gangs of
different types never share a machine. Gangs that may mix types lie anywhere, so for them only the number of GPUs
matters. The conditions are therefore as exact as with one type.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pycontrol.auction.instance import Instance, rows_that_matter, scope_of
from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.grouping import summed
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value

Ints = npt.NDArray[np.int32]
Pins = dict[str, int]
"""Host (or rack) -> GPUs of the gangs that a row keeps."""
_Pin = tuple[int, set[int]]
"""(GPUs kept at one place, numbers of GPUs that may be free there before)."""


@value
class Compact:
    """Arrays over the rows of all bidders, bidder by bidder: the best gain first, the row "nothing" (None) last."""

    bids: Sequence[Bid]
    rows: Sequence[BidRow | None]
    first: Ints
    """[bidders + 1]: where a bidder's rows begin."""
    gain: npt.NDArray[np.float64]
    """[rows]: log of rho_nothing / rho."""
    use: Ints
    """[rows, dims]: a lower bound on the row's use of each dim, for any choice of the other bidders."""
    room: Ints
    level: Ints
    """[dims]: s for units of s GPUs on machines, -s for units of s GPUs in racks, 0 for GPUs."""
    dim_type: Ints
    """[dims]: the GPU type of the dim, as in `size_type`."""
    gangs: Ints
    size: Ints
    """[rows]: index in `sizes`."""
    scope: Ints
    sizes: Ints
    """[sizes]: GPUs of a gang, descending; once for each type."""
    size_type: Ints
    """[sizes]: index in `types`; -1 if any type is allowed."""
    types: Sequence[str]
    """GPU types; [""] if no gang names a type."""
    chain: bool
    """Whether the sizes on machines divide each other, and so do those in racks."""
    hosts: Sequence[str]
    """Hosts with free GPUs, rack by rack."""
    host_type: Ints
    racks: Sequence[str]
    """Racks, with one entry for each GPU type in a rack."""
    rack_type: Ints
    rack: Ints
    free: Ints
    pins: Sequence[Pins]
    """[rows]: GPUs kept, by host."""

    @property
    def exact(self) -> bool:
        """Whether the dims decide exactly what fits; never if gangs must lie in one rack."""
        in_racks = (self.scope == Scope.RACK) & (self.sizes[self.size] > 1)
        return self.chain and not any(self.pins) and not bool(in_racks.any())


def compact(bids: Sequence[Bid], instance: Instance) -> Compact:
    """The compact form of an auction."""
    rows, first, gain = _rows(bids, instance)
    named = sorted({r.gpu_type for r in rows if r is not None and r.new_gangs and r.gpu_type})
    types = named or [""]
    number = {t: k for k, t in enumerate(types)}
    kind = {h: number.get(instance.topology.type_of(h), -1) if named else 0 for h, n in instance.free.items() if n > 0}

    def rack_of(host: str) -> tuple[str, int]:
        return instance.topology.rack_of(host), kind[host]

    hosts = sorted(kind, key=lambda h: (rack_of(h), h))
    racks = sorted({rack_of(h) for h in hosts})
    rack_number = {r: k for k, r in enumerate(racks)}
    any_type = -1 if named else 0
    new = [
        (r.new_gangs, r.gang_gpus, scope_of(r), number.get(r.gpu_type, any_type))
        if r is not None and r.new_gangs
        else (0, 1, 3, any_type)
        for r in rows
    ]
    pins = _pins(bids, rows, first)
    classes = sorted({(s, t) for _, s, _, t in new}, key=lambda c: (-c[0], c[1]))
    index = {c: k for k, c in enumerate(classes)}
    dims = _Dims(bids, instance, first, new, pins)
    chain = True
    for t in range(len(types)):
        free = {h: instance.free[h] for h in hosts if kind[h] == t}
        if named:
            mine = _by_place(pins, lambda h: h, set(free))
            dims.add_type(t, sum(free.values()), mine)
        else:
            mine = pins
        chain &= dims.add_places(t, free, mine, instance.topology)
    return Compact(
        bids, rows, _ints(first), np.array(gain), np.ascontiguousarray(np.stack(dims.use, axis=1), np.int32),
        _ints(dims.room), _ints(dims.level), _ints(dims.types), dims.gangs.astype(np.int32),
        _ints(index[s, t] for _, s, _, t in new), dims.scope.astype(np.int32), _ints(s for s, _ in classes),
        _ints(t for _, t in classes), types, chain, hosts, _ints(kind[h] for h in hosts), [r for r, _ in racks],
        _ints(t for _, t in racks), _ints(rack_number[rack_of(h)] for h in hosts),
        _ints(instance.free[h] for h in hosts), pins,
    )  # fmt: skip


def _rows(bids: Sequence[Bid], instance: Instance) -> tuple[list[BidRow | None], list[int], list[float]]:
    """`rows`, `first` and `gain` of the compact form."""
    rows: list[BidRow | None] = []
    first, gain, log, total_gpus = [0], [], math.log, sum(instance.free.values())
    for bid in bids:
        nothing = log(bid.rho_nothing)
        own = sorted(rows_that_matter(bid, instance.free, total_gpus), key=lambda r: r.rho)
        rows += own
        rows.append(None)
        gain += [nothing - log(r.rho) for r in own]
        gain.append(0.0)
        first.append(len(rows))
    return rows, first, gain


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int32)


def _pins(bids: Sequence[Bid], rows: Sequence[BidRow | None], first: Sequence[int]) -> list[Pins]:
    """The kept GPUs of each row; rows of a bidder that keep the same gangs share one object."""
    result: list[Pins] = []
    for i in range(len(bids)):
        seen: dict[tuple[Gang, ...], Pins] = {}
        for row in rows[first[i] : first[i + 1]]:
            keep = row.keep if row is not None else ()
            if keep not in seen:
                seen[keep] = Counter()
                for gang in keep:
                    seen[keep].update(dict(gang))
            result.append(seen[keep])
    return result


def _by_place(pins: Sequence[Pins], place_of: Callable[[str], str], hosts: set[str]) -> list[Pins]:
    """The kept GPUs on these hosts, by place; rows that shared an object share one again."""
    places: dict[int, Pins] = {}
    for own in pins:
        if id(own) not in places:
            places[id(own)] = Counter()
            for host, n in own.items():
                if host in hosts:
                    places[id(own)][place_of(host)] += n
    return [places[id(own)] for own in pins]


def _divide(sizes: set[int]) -> bool:
    ordered = sorted(sizes)
    return all(b % a == 0 for a, b in itertools.pairwise(ordered))


class _Dims:
    """Collects the dims and the rows' use of them."""

    def __init__(
        self,
        bids: Sequence[Bid],
        instance: Instance,
        first: Sequence[int],
        new: Sequence[tuple[int, int, int, int]],
        pins: Sequence[Pins],
    ) -> None:
        self.app = np.repeat(np.arange(len(bids)), np.diff(first))
        self._new = new
        self.gangs, self.size, self.scope, self.type = (np.array(v) for v in zip(*new, strict=True))
        gpus = self.gangs * self.size + np.array([sum(own.values()) if own else 0 for own in pins])
        self.use: list[npt.NDArray[np.int64]] = [gpus]
        self.room, self.level, self.types = [sum(instance.free.values())], [0], [-1]
        for limit in instance.limits:
            inside = np.array([b.app_id in limit.app_ids for b in bids])[self.app]
            if inside.any():
                self._add(gpus * inside, limit.gpus, 0, -1)

    def _add(self, use: npt.NDArray[np.int64], room: int, level: int, of_type: int) -> None:
        self.use.append(use)
        self.room.append(room)
        self.level.append(level)
        self.types.append(of_type)

    def add_type(self, of_type: int, gpus: int, pins: Sequence[Pins]) -> None:
        """Adds the dim of all GPUs of one type, used by new gangs of the type and by kept gangs."""
        new = np.where(self.type == of_type, self.gangs * self.size, 0)
        self._add(new + np.array([sum(own.values()) if own else 0 for own in pins]), gpus, 0, of_type)

    def add_places(self, of_type: int, free: Mapping[str, int], pins: Sequence[Pins], topology: Topology) -> bool:
        """Adds the dims of one type's machines and racks; returns whether the sizes on each divide each other."""
        on_machine, in_rack = (self._sizes(scope, of_type) for scope in (Scope.MACHINE, Scope.RACK))
        on_hosts = _others(free, pins, self.app)
        for s in sorted(on_machine):
            self.add_level(s, of_type, free, on_hosts)
        if in_rack:
            rack_free = summed((topology.rack_of(h), n) for h, n in free.items())
            in_racks = _others(rack_free, _by_place(pins, topology.rack_of, set(free)), self.app)
            for s in sorted(in_rack):
                self.add_level(-s, of_type, rack_free, in_racks)
        return _divide(on_machine) and _divide(in_rack)

    def _sizes(self, scope: Scope, of_type: int) -> set[int]:
        """The sizes of gangs of one type that must lie within this scope."""
        return {s for _, s, within, of in self._new if within == scope and of == of_type}

    def add_level(self, level: int, of_type: int, free: Mapping[str, int], pins: Sequence[Sequence[_Pin]]) -> None:
        """Adds the dim of units of |level| GPUs on one type's machines (level > 0) or racks, given by `free`.

        It is left out if it cannot bind.
        """
        s = abs(level)
        if s == 1:  # the dim of GPUs has this
            return
        inside = (self.scope == Scope.MACHINE if level > 0 else self.scope != Scope.CLUSTER) & (self.type == of_type)
        use = np.where(inside, self.gangs * (self.size // s), 0)
        pinned = [j for j, own in enumerate(pins) if own]
        breaks = {id(own): _least_breaks(s, own) for own in {id(own): own for own in pins if own}.values()}
        for j in pinned:
            use[j] += breaks[id(pins[j])]
        room = sum(n // s for n in free.values())
        most = np.zeros(self.app[-1] + 1, dtype=np.int64)
        np.maximum.at(most, self.app, use)
        if most.sum() > room or pinned:
            self._add(use, room, level, of_type)


def _others(free: Mapping[str, int], pins: Sequence[Pins], app: npt.NDArray[np.int64]) -> list[list[_Pin]]:
    """For each row, its kept GPUs by place, with the numbers of GPUs that other bidders may leave free there."""
    bidder = app.tolist()
    amounts: dict[str, dict[int, set[int]]] = {}
    for j, own in {id(own): (j, own) for j, own in enumerate(pins)}.values():
        for place, n in own.items():
            amounts.setdefault(place, {}).setdefault(bidder[j], {0}).add(n)
    others: dict[tuple[str, int], set[int]] = {}
    for place, by_app in amounts.items():
        for i in by_app:
            sums = {0}
            for k, ns in by_app.items():
                if k != i:
                    sums = {a + b for a in sums for b in ns if a + b <= free[place]}
            others[place, i] = sums
    pinned: dict[int, list[_Pin]] = {}
    for j, own in enumerate(pins):
        if id(own) not in pinned:
            kept = ((n, free[p], others[p, bidder[j]]) for p, n in own.items())
            pinned[id(own)] = [(n, {f - o for o in sums if o + n <= f}) for n, f, sums in kept]
    return [pinned[id(own)] for own in pins]


def _least_breaks(s: int, pins: Sequence[_Pin]) -> int:
    """The least number of units of s GPUs that kept gangs break, for any gangs that the other bidders keep."""
    return sum(min((left // s - (left - n) // s for left in lefts), default=0) for n, lefts in pins)
