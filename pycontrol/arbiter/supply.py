"""Which GPUs a virtual cluster may use: what rounds are about, where there are virtual clusters (HiveD, section 3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from pycontrol.model.auction import Gang
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


@value
class Lot:
    """What one round shares out, GPUs by host.

    Without virtual clusters the whole cluster (`free` None). With them: what the free cells of one tenant are, or
    would be, bound to (`guaranteed`), or idle GPUs that it may borrow until a tenant's guarantee needs them.
    """

    vc: str = ""
    guaranteed: bool = True
    free: Mapping[str, int] | None = None


@value
class Held:
    """The GPUs of one gang: what cells call a group, by the name of its grant."""

    group: str
    vc: str
    guaranteed: bool
    gpus: tuple[Gpu, ...]


@value
class Placed:
    """Where a gang goes, and the groups that give way to it."""

    gpus: tuple[Gpu, ...]
    evicted: tuple[str, ...] = ()


class Supply(Protocol):
    """The cells behind the virtual clusters."""

    def vc_of(self, queue: str) -> str:
        """The virtual cluster of a leaf queue; empty for a queue without one."""

    def gpus_of(self, vc: str) -> int:
        """GPUs of a virtual cluster (its R_C); 0 for the empty one."""

    def virtual_clusters(self) -> Iterable[str]:
        """All of them."""

    def guaranteed(self, vc: str) -> Mapping[str, int]:
        """GPUs by host that its free cells are bound to, or would be bound to now with the fewest preemptions."""

    def idle(self, vc: str) -> Mapping[str, int]:
        """GPUs by host that nobody uses, and that it may borrow."""

    def shares(self, wanted: Mapping[str, int], idle_gpus: int) -> Mapping[str, int]:
        """Weighted max-min shares of idle GPUs."""

    def place(self, group: str, vc: str, guaranteed: bool, gang: Gang) -> Placed | None:
        """Takes cells for a gang on these hosts; the evicted groups are forgotten. None where it does not fit."""

    def release(self, group: str) -> None:
        """A group ended or is being taken back."""

    def machines_changed(self, up: Mapping[str, Collection[int]]) -> None:
        """Hosts that are up and in use, with the indices of their GPUs that are in order."""

    def recover(self, groups: Iterable[Held]) -> tuple[str, ...]:
        """These groups, and no others, are there; returns those that no cell can own: they are borrowed now."""

    def inspect(self) -> Mapping[str, Any]:
        """The state of all cells, as JSON values."""
