"""The topology file: the expected machines, in racks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from pycontrol.config.strict_yaml import Host, Seconds, Section, read
from pycontrol.model.topology import Machine, Topology


class MachineSpec(Section):
    """A machine as the topology file names it."""

    host: Host
    """As its NodeManager registers."""
    gpus: Annotated[int, Field(ge=0)]
    """GPUs that its NodeManager registers."""
    type: Annotated[str, Field(min_length=1)] = "gpu"
    """Type of its GPUs, as speeds and policies name it."""
    memory_mb: Annotated[int, Field(gt=0)] = 16384
    """Memory for containers, MiB; only dev-cluster uses it."""
    vcores: Annotated[int, Field(gt=0)] = 16
    """Only dev-cluster uses it."""
    slot_gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of a slot, as consecutive indices with a faster interconnect (an NVLink pair: 2); 0: none."""

    @model_validator(mode="after")
    def _slots_divide_the_gpus(self) -> Self:
        if self.slot_gpus and self.gpus % self.slot_gpus:
            raise ValueError(f"{self.host}: slot_gpus is {self.slot_gpus}, which does not divide its {self.gpus} GPUs")
        return self


class RackSpec(Section):
    """A rack: machines with a fast interconnect."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^\s/]+$")]
    """As YARN's topology script names it, without the slash."""
    machines: Annotated[list[MachineSpec], Field(min_length=1)]


class TopologySpec(Section):
    """The whole topology file."""

    virtual_gpus: bool = False
    """Whether GPUs are virtual: counted, but without hardware; workers pace their steps."""
    speeds: dict[str, Seconds] = Field(default_factory=dict)
    """{type: speed relative to a type of speed 1}; default 1. Budgets count GPU-hours by it, virtual GPUs are paced."""
    prices: dict[str, Seconds] = Field(default_factory=dict)
    """{type: price of a GPU-hour}, for `isonomy usage`."""
    racks: Annotated[list[RackSpec], Field(min_length=1)]

    @model_validator(mode="after")
    def _hosts_differ(self) -> Self:
        for what, names in (
            ("racks: name", [r.name for r in self.racks]),
            ("racks: host", [m.host for m in self.machines]),
        ):
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]} is there twice; give each its own")
        return self

    @model_validator(mode="after")
    def _are_of_types(self) -> Self:
        types = sorted({m.type for m in self.machines})
        for key, names in (("speeds", self.speeds), ("prices", self.prices)):
            for name in names:
                if name not in types:
                    raise ValueError(f"{key}: no machine has the type {name}; types are {', '.join(types)}")
        return self

    @property
    def machines(self) -> list[MachineSpec]:
        """All machines, in the file's order."""
        return [machine for rack in self.racks for machine in rack.machines]

    def topology(self) -> Topology:
        """The topology as policies see it."""
        return Topology.of(
            Machine(m.host, rack.name, m.gpus, m.type, virtual=self.virtual_gpus, slot_gpus=m.slot_gpus)
            for rack in self.racks
            for m in rack.machines
        )


def load_topology_spec(path: Path | str) -> TopologySpec:
    """Read the topology file; raises ConfigError."""
    return read(Path(path), TopologySpec)


def load_topology(path: Path | str) -> Topology:
    """The topology of a topology file, as policies see it; raises ConfigError."""
    return load_topology_spec(path).topology()


def mismatches(topology: Topology, registered: Mapping[str, int]) -> list[str]:
    """Differences between the registered NodeManagers (GPUs by host) and the topology, one line per node."""
    lines = []
    for host, machine in sorted(topology.machines.items()):
        if host not in registered:
            lines.append(f"{host}: the topology says {machine.gpus} GPUs, but no NodeManager registered")
        elif registered[host] != machine.gpus:
            lines.append(
                f"{host}: the topology says {machine.gpus} GPUs, its NodeManager registered {registered[host]}"
            )
    lines += [
        f"{host}: its NodeManager registered {gpus} GPUs, but the topology does not name it"
        for host, gpus in sorted(registered.items())
        if host not in topology.machines
    ]
    return lines
