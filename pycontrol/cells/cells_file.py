"""The cells file: its YAML models, and the layout that it describes. Errors name the file, the key and a remedy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pycontrol.cells.geometry import Chain, hidden_fans
from pycontrol.cells.layout import Layout, LayoutError, Pin, Terms, Vc
from pycontrol.config import ConfigError, Section
from pycontrol.model.topology import Machine, Topology

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CellType(Section):
    """A cell of `count` cells of the type `child`."""

    child: Name
    count: Annotated[int, Field(ge=1, le=1 << 20)]
    node_level: bool = False


class PhysicalCell(Section):
    """A physical cell: a tree down to GPUs, or in the short form a type with the hosts in it."""

    type: Name
    node: str | None = None
    leaf_index: Annotated[int, Field(ge=0)] | None = None
    pinned_id: str | None = None
    children: list[PhysicalCell] = Field(default_factory=list)
    hosts: list[Name] = Field(default_factory=list)
    """Instead of `children`: the hosts in order, with GPUs 0, 1, 2, ..."""
    indices: dict[str, list[Annotated[int, Field(ge=0)]]] = Field(default_factory=dict)
    """With `hosts`: the GPU indices of hosts with another numbering."""


class VirtualCell(Section):
    """A number of cells of a type. `chain` is the top cell type; it is needed if several chains have the type."""

    type: Name
    count: Count
    chain: str | None = None
    path: str | None = None


class VirtualCluster(Section):
    """The cells and settings of a virtual cluster. Short form: a mapping of cell types to counts."""

    cells: list[VirtualCell] = Field(default_factory=list)
    pinned: list[Name] = Field(default_factory=list)
    weight: Weight = 1.0
    policy: Name | None = None
    """Its policy; None: that of isonomy.yaml."""
    policy_options: dict[str, Any] = Field(default_factory=dict)
    f: Annotated[float, Field(ge=0, le=1)] | None = None
    """The fairness knob f within it; None: that of isonomy.yaml."""
    lease_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The length of its leases, guaranteed and borrowed, seconds; None: that of isonomy.yaml."""
    min_lend_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How long a borrower keeps its GPUs before it must give them back: its own apps may wait so much longer for them,
    seconds."""
    private_schedule: bool = False
    """Whether apps behind the schedule of its private cluster go first, so that borrowing makes none end later; only
    for the policies in `on_schedule.KEEPS`."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {"private_schedule" if k == "shadow" else k: v for k, v in value.items()}  # its former name
        known = {k: v for k, v in value.items() if k in cls.model_fields and not (k == "cells" and isinstance(v, int))}
        short = {k: v for k, v in value.items() if k not in known}
        if isinstance(known.get("cells"), dict):
            short |= known.pop("cells")
        for key, count in short.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ValueError(f"{key}: must be how many {key} cells it owns (got {count})")
        if short:
            known["cells"] = [*known.get("cells", []), *({"type": k, "count": n} for k, n in short.items())]
        return known


class CellsFile(Section):
    """The cells file. It has either `levels` (a uniform cluster, with `hosts` or the hosts of the topology file),
    or `cell_types` with `physical_cells`."""

    levels: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Cell type -> number of cells of the level below (GPUs for the first) in a cell, the smallest level first."""
    node: str = "node"
    """The level of hosts."""
    hosts: list[Name] = Field(default_factory=list)
    gpu: str = "gpu"
    """The GPU type: the cell type of level 0."""
    cell_types: dict[str, CellType] = Field(default_factory=dict)
    physical_cells: list[PhysicalCell] = Field(default_factory=list)
    virtual_clusters: dict[str, VirtualCluster]
    binding: Literal["dynamic", "static"] = "dynamic"

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.physical_cells) != bool(self.cell_types):
            raise ValueError("cell_types and physical_cells belong together; give both or neither")
        if self.physical_cells and (self.levels or self.hosts):
            raise ValueError("levels and hosts describe a uniform cluster; leave them out beside physical_cells")
        if self.levels and self.node not in self.levels:
            raise ValueError(f"levels: has no level {self.node}; name the level of hosts with `node:`")
        return self


def layout(file: CellsFile, topology: Topology | None = None, name: str = "cells.yaml") -> Layout:
    """The layout that the file describes; raises ConfigError if it is invalid or infeasible, with what is missing."""
    try:
        if file.physical_cells:
            chains, pins = _explicit(file)
        else:
            chains, pins = _uniform(file, topology), {}
        found = Layout(tuple(chains), tuple(_vcs(file, chains, pins)), file.binding == "static")
        short = found.shortfalls()
        if short:
            raise LayoutError([f"virtual_clusters: {line}" for line in short])
    except LayoutError as error:
        raise ConfigError([f"{name}: {line}" for line in error.lines]) from error
    return found


HOST_GPUS_MAX = 4096
"""A larger number of GPUs on one host is a mistake in the file, and would use up all memory."""


def _host_gpus(levels: Iterable[tuple[str, int]], node: str, where: str) -> int:
    """The GPUs of a host, from the fans of the levels up to it; raises LayoutError if there are too many."""
    size = 1
    for name, fan in levels:
        size *= fan
        if name == node:
            break
    if size > HOST_GPUS_MAX:
        raise LayoutError([f"{where}: a {node} has {size} GPUs; at most {HOST_GPUS_MAX} are possible"])
    return size


def _chain(levels: list[tuple[str, int]], node: str, top: str, hosts: list[str], indices: list[int]) -> Chain:
    """A chain from the (type, fan) of each level, with hidden levels for wide fans above nodes."""
    names, fans, above = list[str](), list[int](), False
    for name, fan in levels:
        parts = hidden_fans(fan) if above else [fan]
        names += [""] * (len(parts) - 1) + [name]
        fans += parts
        above = above or name == node
    return Chain(top, tuple(names), tuple(fans), names.index(node), tuple(hosts), tuple(indices))


def _uniform(file: CellsFile, topology: Topology | None) -> list[Chain]:
    levels = list(file.levels.items())
    machines = list(topology.machines.values()) if topology else []
    if file.hosts:
        twice = sorted(host for host, n in Counter(file.hosts).items() if n > 1)
        if twice:
            raise LayoutError([f"hosts: {twice[0]} is there twice; a GPU has one place"])
        size = _host_gpus(levels, file.node, "levels")
        machines = [Machine(host, "", size, file.gpu) for host in file.hosts]
    machines = [m for m in machines if m.gpus]
    if not machines:
        raise LayoutError(["hosts: is missing, and no topology file names hosts with GPUs; name the hosts"])
    pools: dict[tuple[str, int], list[Machine]] = {}
    for machine in sorted(machines, key=lambda m: (m.rack, m.host)):
        pools.setdefault((machine.gpu_type, machine.gpus), []).append(machine)
    types = [gpu_type for gpu_type, _ in pools]
    chains = []
    for (gpu_type, gpus), members in pools.items():
        suffix = "" if len(pools) == 1 else f"-{gpu_type}" if types.count(gpu_type) == 1 else f"-{gpu_type}-{gpus}"
        chains += _pool_chains(file, levels or _halves(gpus), gpu_type, gpus, members, suffix)
    return chains


def _halves(gpus: int) -> list[tuple[str, int]]:
    """Default levels of a host: 2, 4, ... GPUs, as long as they divide it."""
    levels, size = list[tuple[str, int]](), 1
    while size * 2 < gpus and gpus % (size * 2) == 0:
        size *= 2
        levels.append((f"{size}-gpu", 2))
    return [*levels, ("node", gpus // size)]


def _pool_chains(
    file: CellsFile, levels: list[tuple[str, int]], gpu_type: str, gpus: int, members: list[Machine], suffix: str
) -> list[Chain]:
    """The chain of equal hosts; hosts that do not fill a top cell form a second chain."""
    named = [(gpu_type, 1)] + [(name + suffix, fan) for name, fan in levels]
    node = file.node + suffix
    at = next(k for k, (name, _) in enumerate(named) if name == node)
    size = math.prod(fan for _, fan in named[: at + 1])
    if size != gpus:
        raise LayoutError(
            [f"levels: a {file.node} has {size} GPUs, but {members[0].host} has {gpus}; change levels to match"]
        )
    group = math.prod(fan for _, fan in named[at + 1 :])
    whole = len(members) // group * group
    hosts = [m.host for m in members]
    chains = []
    if whole:
        chains.append(_chain(named, node, named[-1][0], hosts[:whole], list(range(gpus)) * whole))
    if whole < len(members):
        rest = hosts[whole:]
        chains.append(_chain(named[: at + 1], node, node, rest, list(range(gpus)) * len(rest)))
    return chains


def _types_below(types: Mapping[str, CellType], top: str) -> list[tuple[str, int]]:
    """(type, fan) by level from GPUs up to a top type."""
    levels: list[tuple[str, int]] = []
    name = top
    while name in types:
        if len(levels) > 32:
            raise LayoutError([f"cell_types.{top}: contains itself; break the cycle"])
        levels.append((name, types[name].count))
        name = types[name].child
    return [(name, 1), *reversed(levels)]


def _explicit(file: CellsFile) -> tuple[list[Chain], dict[str, tuple[int, int, int]]]:
    """Chains and pinned cells (name -> chain, level, number) from trees."""
    by_top: dict[str, list[tuple[int, PhysicalCell]]] = {}
    for at, cell in enumerate(file.physical_cells):
        by_top.setdefault(cell.type, []).append((at, cell))
    chains, pins = [], dict[str, tuple[int, int, int]]()
    for number, (top, cells) in enumerate(by_top.items()):
        if top not in file.cell_types:
            raise LayoutError([f"physical_cells[{cells[0][0]}].type: {top} is not among cell_types; define it"])
        levels = _types_below(file.cell_types, top)
        nodes = [name for name, _ in levels if name in file.cell_types and file.cell_types[name].node_level]
        if len(nodes) != 1:
            raise LayoutError(
                [f"cell_types.{top}: needs exactly one type with node_level in it, has {len(nodes)}; mark the hosts'"]
            )
        _host_gpus(levels, nodes[0], f"cell_types.{top}")
        reader = _ChainReader(levels, nodes[0])
        for at, cell in cells:
            reader.read(cell, len(levels) - 1, f"physical_cells[{at}]")
        chain = _chain(levels, nodes[0], top, reader.hosts, reader.indices)
        chains.append(chain)
        for pin, (name, first) in reader.pins.items():
            if pin in pins:
                raise LayoutError([f"physical_cells: the pinned_id {pin} is there twice; give each its own"])
            level = chain.names.index(name)
            pins[pin] = (number, level, first // chain.sizes[level])
    seen: set[tuple[str, int]] = set()
    for chain in chains:
        per_node = chain.sizes[chain.node]
        for leaf, index in enumerate(chain.indices):
            gpu = (chain.hosts[leaf // per_node], index)
            if gpu in seen:
                raise LayoutError([f"physical_cells: GPU {gpu[0]}:{gpu[1]} is there twice; a GPU has one place"])
            seen.add(gpu)
    return chains, pins


class _ChainReader:
    """Flattens the trees of one chain in order."""

    def __init__(self, levels: list[tuple[str, int]], node: str) -> None:
        self.levels, self.node = levels, node
        self.node_level = next(k for k, (name, _) in enumerate(levels) if name == node)
        self.hosts: list[str] = []
        self.indices: list[int] = []
        self.pins: dict[str, tuple[str, int]] = {}

    def read(self, cell: PhysicalCell, level: int, where: str) -> None:
        name, fan = self.levels[level]
        if cell.type != name:
            raise LayoutError([f"{where}.type: must be {name} here (got {cell.type})"])
        if cell.pinned_id is not None:
            if cell.pinned_id in self.pins:
                raise LayoutError([f"{where}.pinned_id: {cell.pinned_id} is there twice; give each its own"])
            self.pins[cell.pinned_id] = (name, len(self.indices))
        if cell.hosts:
            self._hosts(cell, level, where)
            return
        if level == self.node_level:
            if not cell.node:
                raise LayoutError([f"{where}.node: is missing; name the host"])
            self.hosts.append(cell.node)
        if level == 0:
            if cell.leaf_index is None:
                raise LayoutError([f"{where}.leaf_index: is missing; give the GPU's index on its host"])
            self.indices.append(cell.leaf_index)
            return
        if len(cell.children) != fan:
            raise LayoutError([f"{where}.children: a {name} has {fan} (got {len(cell.children)})"])
        for at, child in enumerate(cell.children):
            self.read(child, level - 1, f"{where}.children[{at}]")

    def _hosts(self, cell: PhysicalCell, level: int, where: str) -> None:
        fans = [fan for _, fan in self.levels[: level + 1]]
        per_node, count = math.prod(fans[: self.node_level + 1]), math.prod(fans[self.node_level + 1 :])
        if level < self.node_level or len(cell.hosts) != count:
            raise LayoutError([f"{where}.hosts: a {cell.type} has {count} (got {len(cell.hosts)})"])
        for host in cell.hosts:
            own = cell.indices.get(host, list(range(per_node)))
            if len(own) != per_node:
                raise LayoutError([f"{where}.indices.{host}: must be {per_node} numbers (got {len(own)})"])
            self.hosts.append(host)
            self.indices += own


def _vcs(file: CellsFile, chains: list[Chain], pins: Mapping[str, tuple[int, int, int]]) -> list[Vc]:
    vcs, taken, queues = [], dict[str, str](), dict[str, str]()
    for name, spec in file.virtual_clusters.items():
        where = f"virtual_clusters.{name}"
        if not name.removeprefix("root."):
            raise LayoutError([f"{where}: is no leaf queue; name one, such as root.prod"])
        other = queues.setdefault(name.removeprefix("root."), name)
        if other != name:
            raise LayoutError([f"{where}: is the same queue as {other}; keep one of them"])
        cells: dict[tuple[int, int], int] = {}
        for at, cell in enumerate(spec.cells):
            key = _locate(chains, cell.type, cell.chain, f"{where}.cells[{at}]")
            cells[key] = cells.get(key, 0) + cell.count
        for pin in spec.pinned:
            if pin not in pins:
                raise LayoutError([f"{where}.pinned: no physical cell has the pinned_id {pin}; add it there"])
            if pin in taken:
                raise LayoutError([f"{where}.pinned: {pin} is {taken[pin]}'s; a pinned cell has one owner"])
            taken[pin] = name
        pinned = tuple(Pin(pin, *pins[pin]) for pin in spec.pinned)
        flat = tuple((chain, level, count) for (chain, level), count in cells.items() if count)
        terms = Terms(
            spec.policy or "", spec.policy_options, spec.f, spec.lease_s, spec.private_schedule, spec.min_lend_s
        )
        vcs.append(Vc(name, flat, pinned, spec.weight, terms))
    return vcs


def _locate(chains: list[Chain], kind: str, chain: str | None, where: str) -> tuple[int, int]:
    """The (chain, level) of a cell type."""
    places = [
        (at, level)
        for at, c in enumerate(chains)
        if chain in (None, c.name) and (level := c.level_of(kind)) is not None and kind
    ]
    if len(places) == 1:
        return places[0]
    if not places:
        if chain is not None and chain not in {c.name for c in chains}:
            known = ", ".join(c.name for c in chains)
            raise LayoutError([f"{where}.chain: there is no chain {chain}; there are {known}"])
        known = ", ".join(sorted({n for c in chains for n in c.names if n}))
        raise LayoutError([f"{where}.type: there is no cell type {kind} there; known are {known}"])
    names = ", ".join(chains[at].name for at, _ in places)
    raise LayoutError([f"{where}.chain: several chains have {kind} cells ({names}); say which"])
