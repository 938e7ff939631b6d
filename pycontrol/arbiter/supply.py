"""Which GPUs a virtual cluster may use: what rounds are about, where there are virtual clusters (HiveD, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pycontrol.model.topology import Gpu


@dataclass(frozen=True, slots=True)
class Lot:
    """What one round shares out.

    Without virtual clusters: the whole cluster, `gpus` None. With them: GPUs that the cells of one tenant are,
    or would be, bound to (`guaranteed`), or idle ones that it may borrow until a tenant's guarantee needs them.
    """

    vc: str = ""
    guaranteed: bool = True
    gpus: frozenset[Gpu] | None = None
    limit_gpus: int | None = None
    """Of idle GPUs: its fair share in this round."""


class Supply(Protocol):
    """The cells behind the virtual clusters; it sees every lease begin and end."""

    def vc_of(self, queue: str) -> str:
        """The virtual cluster of a leaf queue; empty for a queue without one."""

    def gpus_of(self, vc: str) -> int:
        """GPUs of a virtual cluster (its R_C); 0 for the empty one."""

    def virtual_clusters(self) -> Iterable[str]:
        """All of them."""

    def guaranteed(self, vc: str) -> frozenset[Gpu]:
        """GPUs that its unused cells are bound to or would be bound to now, with the fewest preemptions."""

    def shares(self, wanted: Mapping[str, int], idle: frozenset[Gpu]) -> Mapping[str, int]:
        """Weighted max-min shares of the idle GPUs, in the order in which to serve the virtual clusters."""

    def took(self, gpu: Gpu, vc: str, guaranteed: bool) -> None:
        """A lease on the GPU began, or was promised."""

    def gave(self, gpu: Gpu, vc: str, guaranteed: bool) -> None:
        """A lease on the GPU ended."""

    def machines_changed(self, up: Mapping[str, int]) -> None:
        """Hosts that are up and in use, with their GPUs."""

    def reset(self) -> None:
        """Forgets all leases; `took` follows for each that there is."""

    def inspect(self) -> Mapping[str, Any]:
        """The state of all cells, as JSON values."""
