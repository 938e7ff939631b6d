"""Which GPUs a virtual cluster may use (HiveD, section 3), and so what a round shares out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from pycontrol.cells.automatic import Automatic
from pycontrol.cells.exchange import Deal, Exchange
from pycontrol.cells.layout import Layout, Terms
from pycontrol.cells.machines import VirtualMachine
from pycontrol.model.auction import Demand, Gang
from pycontrol.model.topology import Gpu, Topology
from pycontrol.model.value import value

AS_CONFIGURED = Terms()
"""Settings of a virtual cluster that has none of its own."""


@value
class RoundPart:
    """What one round shares out.

    Without virtual clusters the whole cluster (`free` None). With them: the machines that one tenant's cells are
    (`guaranteed`: its private cluster), or idle GPUs by host that it may borrow until a guarantee needs them.
    """

    vc: str = ""
    guaranteed: bool = True
    free: Mapping[str, int] | None = None
    """GPUs by machine, or by host where they are borrowed."""
    topology: Topology | None = None
    """The tenant's machines; None where hosts are shared out."""
    host_of: Mapping[str, str] = field(default_factory=dict)
    """Where each machine is, or would be, bound."""
    bound: frozenset[str] = frozenset()
    """The machines that are bound; the others may be bound elsewhere."""
    without: frozenset[str] = frozenset()
    """Apps whose gangs found no cells in the part before; this one is for the others."""
    pinned: Mapping[str, str] = field(default_factory=dict)
    """The pinned cell that a machine is, for those that are one."""

    @property
    def whole(self) -> bool:
        """Whether it is the whole cluster."""
        return self.free is None

    def is_of(self, vc: str) -> bool:
        """Whether the apps of a virtual cluster are those that share it."""
        return self.free is None or self.vc == vc

    @property
    def private(self) -> bool:
        """Whether the machines are a tenant's own, rather than hosts."""
        return self.topology is not None

    def admits(self, demand: Demand) -> bool:
        """Whether an app with this demand takes part: opportunistic apps only borrow, pinned ones never do."""
        return not (demand.opportunistic if self.private else demand.pinned and self.free is not None)

    def by_host(self, gpus: Mapping[str, int]) -> dict[str, int]:
        """GPUs by host instead of by machine."""
        found: dict[str, int] = {}
        for name, n in gpus.items():
            host = self.host_of.get(name, name)
            found[host] = found.get(host, 0) + n
        return found


@value
class GroupGpus:
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
    """What GPUs there are for whom: the cells behind virtual clusters, or the whole cluster for all."""

    @property
    def whole(self) -> bool:
        """Whether the whole cluster is one part: nobody owns a part of it, and nothing is borrowed."""

    @property
    def trading(self) -> TradingSupply | None:
        """The same with its exchange, where cells are exchanged."""

    def vc_of(self, queue: str) -> str:
        """The virtual cluster of a leaf queue; empty for a queue without one."""

    def gpus_of(self, vc: str) -> int:
        """GPUs of a virtual cluster (its R_C); 0 for the empty one."""

    def terms(self, vc: str) -> Terms:
        """Its policy, f and lease length, as far as they are its own."""

    def virtual_clusters(self) -> Iterable[str]:
        """All of them."""

    def machines(self, vc: str) -> Sequence[VirtualMachine]:
        """The machines that its cells are, with the GPUs of each that no group of its own holds."""

    def machine_of(self, gpu: Gpu) -> str:
        """The machine that a guaranteed group's GPU is in."""

    def idle(self) -> Mapping[str, int]:
        """GPUs by host that nobody uses."""

    def weights(self) -> Mapping[str, float]:
        """By virtual cluster, of what it may borrow."""

    def shares(self, wanted: Mapping[str, int], idle_gpus: int) -> Mapping[str, int]:
        """Weighted max-min shares of idle GPUs."""

    def room_within(self, kind: str, vc: str | None, coming: Iterable[Gpu] = ()) -> Mapping[str, tuple[int, int]]:
        """(GPUs free in one cell of a type, GPUs of such a cell), of the cell with most room.

        By machine of a virtual cluster, or (`vc` None) by host of GPUs that nobody uses; without such cells: missing.
        `coming`: GPUs whose leases end, which count as free.
        """

    def cell_of(self, gpu: Gpu, kind: str) -> tuple[int, int] | None:
        """The physical cell of a type that a GPU lies in, as (chain, number); None where there is no such cell."""

    def place(
        self, group: str, vc: str, guaranteed: bool, gang: Gang, avoid: Collection[str] = (), within: str = ""
    ) -> Placed | None:
        """Takes cells for a gang on these machines of its own (if guaranteed), or on these hosts.

        No machine is bound to a host to `avoid`; what it gets of each lies in one cell of the type `within`. The
        evicted groups are forgotten. None where it does not fit.
        """

    def own(self, group: str, vc: str, gang: Gang) -> bool:
        """Makes a borrowed group that runs own these GPUs of its machines, where it is; False if that cannot be."""

    def downgrade(self, group: str) -> bool:
        """Makes a group that runs on cells of its own borrow these GPUs; False if it did not own them."""

    def release(self, group: str) -> None:
        """A group ended or is being taken back."""

    def machines_changed(self, up: Mapping[str, Collection[int]]) -> None:
        """Hosts that are up and in use, with the indices of their GPUs that are in order."""

    def machine_changed(self, host: str, up: Collection[int]) -> None:
        """The indices of the GPUs of one host that are in order; none where it is away or out of use."""

    def recover(self, groups: Iterable[GroupGpus]) -> tuple[str, ...]:
        """These groups, and no others, are there; returns those that no cell can own: they are borrowed now."""

    def inspect(self) -> Mapping[str, Any]:
        """The state of all cells, as JSON values."""


class TradingSupply(Supply, Protocol):
    """Cells that virtual clusters exchange (HiveD, section 3.3), and whose assignment can be changed."""

    @property
    def automatic(self) -> Automatic | None:
        """What posts by itself, if anything does."""

    @property
    def exchange(self) -> Exchange:
        """Board, deals and books as they are now."""

    def restore(self, data: Mapping[str, Any], now_s: float) -> None:
        """The exchange as it was at `Exchange.dump` (empty: at the start); groups are to be recovered then."""

    def trade(self, now_s: float) -> tuple[list[Deal], list[str]]:
        """Returns cells whose time has passed and makes new deals: (new deals, groups that now borrow)."""

    def reconfigure(self, layout: Layout, now_s: float) -> tuple[str, ...]:
        """Another assignment of cells, running groups and deals kept; returns the groups that now borrow."""


class WholeCluster:
    """The supply of a cluster without virtual clusters: all GPUs are everybody's.

    Records may name virtual clusters of a cells file that was taken out of the configuration: they mean nothing here.
    """

    @property
    def whole(self) -> bool:
        """It is."""
        return True

    @property
    def trading(self) -> TradingSupply | None:
        """There are no cells to exchange."""
        return None

    def vc_of(self, queue: str) -> str:
        """None."""
        return ""

    def gpus_of(self, vc: str) -> int:
        """None is owned."""
        return 0

    def terms(self, vc: str) -> Terms:
        """As isonomy.yaml says."""
        return AS_CONFIGURED

    def virtual_clusters(self) -> Iterable[str]:
        """None."""
        return ()

    def machines(self, vc: str) -> Sequence[VirtualMachine]:
        """None is owned."""
        return ()

    def machine_of(self, gpu: Gpu) -> str:
        """Its host."""
        return gpu.host

    def idle(self) -> Mapping[str, int]:
        """Nothing is lent."""
        return {}

    def weights(self) -> Mapping[str, float]:
        """Nobody's."""
        return {}

    def shares(self, wanted: Mapping[str, int], idle_gpus: int) -> Mapping[str, int]:
        """Nothing is lent."""
        return {}

    def room_within(self, kind: str, vc: str | None, coming: Iterable[Gpu] = ()) -> Mapping[str, tuple[int, int]]:
        """There are no cells of any type."""
        return {}

    def cell_of(self, gpu: Gpu, kind: str) -> tuple[int, int] | None:
        """There are no cells of any type."""
        return None

    def place(
        self, group: str, vc: str, guaranteed: bool, gang: Gang, avoid: Collection[str] = (), within: str = ""
    ) -> Placed | None:
        """Nowhere: there are no cells."""
        return None

    def own(self, group: str, vc: str, gang: Gang) -> bool:
        """Nothing was borrowed."""
        return False

    def downgrade(self, group: str) -> bool:
        """Nothing was owned."""
        return False

    def release(self, group: str) -> None:
        """Nothing is kept for it."""

    def machines_changed(self, up: Mapping[str, Collection[int]]) -> None:
        """There are no cells to tell."""

    def machine_changed(self, host: str, up: Collection[int]) -> None:
        """There are no cells to tell."""

    def recover(self, groups: Iterable[GroupGpus]) -> tuple[str, ...]:
        """All stay as they are."""
        return ()

    def inspect(self) -> Mapping[str, Any]:
        """No cells."""
        return {"groups": (), "physical_cluster": (), "virtual_clusters": {}, "cell_types": {}}
