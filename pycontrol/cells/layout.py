"""A cluster's cells and virtual clusters as values, and whether the assignment of cells is feasible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pycontrol.cells.buddy import Buddy
from pycontrol.cells.geometry import Chain
from pycontrol.configerror import ConfigError
from pycontrol.model.value import value


class LayoutError(ConfigError):
    """An infeasible assignment; each of `lines` says what is missing."""


@value
class Pin:
    """A pinned cell: a particular physical cell that a virtual cluster owns."""

    name: str
    chain: int
    level: int
    number: int


@value
class Terms:
    """Settings of a virtual cluster; missing ones are those of isonomy.yaml."""

    policy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    f: float | None = None
    lease_s: float | None = None
    private_schedule: bool = False
    """Whether apps behind the schedule of the private cluster go first (`policies.on_schedule`)."""
    min_lend_s: float = 0.0
    """How long borrowers keep GPUs of its cells before they are called back."""


@value
class Vc:
    """A virtual cluster: a YARN leaf queue and the cells that it owns."""

    name: str
    cells: tuple[tuple[int, int, int], ...] = ()
    """(chain, level, number of cells)."""
    pinned: tuple[Pin, ...] = ()
    weight: float = 1.0
    """Its weight in sharing idle GPUs (weighted max-min)."""
    terms: Terms = Terms()

    @property
    def policy(self) -> str:
        """The policy that the file names; empty: that of isonomy.yaml."""
        return self.terms.policy


@dataclass(frozen=True)
class Layout:
    """All chains and virtual clusters. `static`: every virtual cell is bound permanently (the baseline)."""

    chains: tuple[Chain, ...]
    vcs: tuple[Vc, ...]
    static: bool = False

    @cached_property
    def _by_name(self) -> Mapping[str, Vc]:
        return {vc.name: vc for vc in self.vcs}

    def vc(self, name: str) -> Vc | None:
        """The virtual cluster of this name; None if there is none."""
        return self._by_name.get(name)

    def gpus(self, vc: Vc) -> int:
        """GPUs that a virtual cluster owns."""
        own = sum(self.chains[c].sizes[level] * count for c, level, count in vc.cells)
        return own + sum(self.chains[p.chain].sizes[p.level] for p in vc.pinned)

    def with_more(self, more: Iterable[tuple[str, int, int, int]]) -> Layout:
        """The layout with cells added, given as (virtual cluster, chain, level, number); a negative number removes.

        Raises LayoutError if a virtual cluster has too few.
        """
        vcs = {vc.name: vc for vc in self.vcs}
        for name, chain, level, count in more:
            vc = vcs.get(name, Vc(name))
            cells = {(c, k): n for c, k, n in vc.cells}
            cells[(chain, level)] = cells.get((chain, level), 0) + count
            if cells[(chain, level)] < 0:
                what = self.chains[chain].names[level]
                has = cells[(chain, level)] - count
                raise LayoutError([f"{name} cannot give {-count} {what} cells; it has {has}"])
            vcs[name] = replace(vc, cells=tuple((c, k, n) for (c, k), n in sorted(cells.items()) if n))
        return replace(self, vcs=tuple(vcs.values()))

    def spare(self) -> dict[str, dict[str, int]]:
        """Chain -> cell type -> cells that could still be assigned, each type on its own."""
        result = {}
        for at, chain in enumerate(self.chains):
            buddy, _ = self._buddy(at)
            slack, sizes = buddy.slack(), chain.sizes
            result[chain.name] = {
                name: min(slack[j] * sizes[j] // sizes[k] for j in range(k + 1))  # lower levels need some
                for k, name in enumerate(chain.names)
                if name
            }
        return result

    def shortfalls(self) -> list[str]:
        """Why the assignment is infeasible, by chain and level; empty if it is feasible."""
        lines = []
        for at, chain in enumerate(self.chains):
            buddy, clashes = self._buddy(at)
            lines += clashes
            spare = 0
            for k in range(chain.top, -1, -1):
                have = len(buddy.free[k]) + spare
                spare = have - buddy.need[k]
                if spare < 0:
                    owners = [
                        f"{vc.name} {n}" for vc in self.vcs for c, level, n in vc.cells if (c, level) == (at, k) and n
                    ]
                    lines.append(
                        f"chain {chain.name}, {chain.names[k]} cells: {buddy.need[k]} are assigned"
                        f" ({', '.join(owners)})"
                        f" but only {have} are available: falls short by {-spare}"
                    )
                    spare = 0
                spare *= chain.fans[k]
        return lines

    def _buddy(self, at: int) -> tuple[Buddy, list[str]]:
        """(a chain's free cells after the pinned ones are taken, messages about overlapping pinned cells)."""
        chain, clashes = self.chains[at], []
        buddy = Buddy(chain)
        pins = [(pin.level, pin.number, pin.name, vc.name) for vc in self.vcs for pin in vc.pinned if pin.chain == at]
        for level, number, name, owner in sorted(pins, reverse=True):
            if buddy.holder((level, number)) is None:
                clashes.append(f"pinned cell {name} of {owner} overlaps another pinned cell; give each its own")
            else:
                buddy.bind((level, number), counted=False)
        for vc in self.vcs:
            for c, level, count in vc.cells:
                if c == at:
                    buddy.need[level] += count
        return buddy, clashes
