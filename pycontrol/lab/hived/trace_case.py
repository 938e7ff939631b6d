"""A part of HiveD's trace as a case: tenants with their cells, and their jobs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

WIDTHS = (1, 2, 4, 8)
"""GPUs of the cells gpu, switch, socket, node."""
LEVELS = ("gpu", "switch", "socket", "node")
Spec = tuple[tuple[str, int, int, float, float], ...]
"""(tenant, number, GPUs, arrival, run time) of each job; each run creates its own jobs."""


@dataclass(frozen=True)
class TraceCase:
    """Jobs on a cluster. `owned`: cells by tenant and type."""

    name: str
    nodes: int
    owned: Mapping[str, Mapping[str, int]]
    spec: Spec
    left_out: int
    until_s: float
    """When the last job has arrived."""
    ends_s: float = math.inf
    """When a simulation of the case stops, even if jobs still run."""
    users: int = 1
    """Users of each tenant, who submit in turn."""

    def gpus(self, tenant: str) -> int:
        """GPUs that a tenant owns."""
        return sum(count * WIDTHS[LEVELS.index(level)] for level, count in self.owned[tenant].items())

    def machines(self, tenant: str) -> list[int]:
        """GPUs of the machines that correspond to a tenant's cells."""
        return [WIDTHS[LEVELS.index(level)] for level, count in self.owned[tenant].items() for _ in range(count)]

    @functools.cached_property
    def run_s(self) -> Mapping[int, float]:
        """Run time by job."""
        return {n: run_s for _, n, _, _, run_s in self.spec}
