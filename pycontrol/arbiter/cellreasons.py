"""Why the cells of an app's virtual cluster cannot hold a gang now: they are too few, lent, bad or in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pycontrol.arbiter.eligibility import types_for
from pycontrol.arbiter.exchange_service import deals_of
from pycontrol.arbiter.lease import REVOKING
from pycontrol.arbiter.round_parts import private_part
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import RoundPart, Supply
from pycontrol.auction.placing import place_gang
from pycontrol.cells.machines import VirtualMachine
from pycontrol.model.auction import Demand
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Scope


def cell_reason(s: State, supply: Supply, vc: str, demand: Demand, now_s: float, typed: bool = False) -> Reason | None:
    """Why the virtual cluster's cells have no room for the demand; None where they do, so that rounds decide.

    `typed`: as in `exceeds_types`.
    """
    if demand.pinned and not vc:
        return Reason(Pending.NO_SUCH_CELLS, "its queue owns no cells")
    if not vc or demand.opportunistic:
        return None if s.gpus.free.count else Reason(Pending.OPPORTUNISTIC if vc else Pending.NO_CELLS)
    part = private_part(s, supply, vc, {})
    assert part.topology is not None
    machines = [m for m in supply.machines(vc) if demand.pinned in ("", m.pinned)]
    if not machines and demand.pinned:
        own = sorted(set(part.pinned.values()))
        return Reason(
            Pending.NO_SUCH_CELLS, f"{vc} owns no pinned cell {demand.pinned}, but {', '.join(own) or 'none'}"
        )
    free, healthy, whole = _rooms(supply, vc, demand, part, machines)
    types, kinds = _types(part), types_for(demand, part.topology, typed)

    def fits(gpus: Mapping[str, int]) -> bool:
        assert part.topology is not None
        size, scope, top = demand.gang_gpus, demand.scope, part.topology
        rooms = ({h: n for h, n in gpus.items() if kind in ("", types.get(h))} for kind in kinds)
        return any(place_gang(size, scope, room, top, demand.members) is not None for room in rooms)

    if fits(free):
        return None
    need = f"a gang of {demand.gang_gpus} GPUs" + (" of one type" if len(kinds) > 1 else "") + _where(demand)
    if fits(healthy):
        left = f"{sum(free.values())} of {sum(healthy.values())} are free"
        return Reason(Pending.CELLS_IN_USE, f"{need}, {left}; {_users(s, vc)}")
    if fits(whole):
        bad = sorted({part.host_of[name] for name, n in whole.items() if n > healthy.get(name, 0)})
        well = f"{sum(healthy.values())} of {sum(whole.values())} are healthy"
        return Reason(Pending.CELLS_BAD, f"{need}, {well}; bad on {', '.join(bad)}")
    if given := _given(s, vc, now_s):
        return Reason(Pending.CELLS_LENT, f"{need}; {'; '.join(_lent(*deal) for deal in given)}")
    largest = max(whole.values(), default=0)
    most = f"it owns {sum(whole.values())}, at most {largest} of them on one machine"
    return Reason(Pending.CELLS_TOO_SMALL, f"{need}; {most}")


def _types(part: RoundPart) -> dict[str, str]:
    """Machine -> the type of its GPUs."""
    return {name: m.gpu_type for name, m in part.topology.machines.items()} if part.topology is not None else {}


def _rooms(
    supply: Supply, vc: str, demand: Demand, part: RoundPart, machines: Sequence[VirtualMachine]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """GPUs by machine that the demand may use: those that are free, those that are healthy, and all."""
    assert part.topology is not None
    types = _types(part)
    names = {m.name for m in machines if demand.gpu_type in ("", types.get(m.name))}
    free = {name: n for name, n in (part.free or {}).items() if name in names}
    healthy = {name: n for name, n in part.topology.gpus_by_host.items() if name in names}
    whole = {m.name: m.cell_gpus for m in machines if m.name in names}
    if demand.within:
        room = supply.room_within(demand.within, vc)
        free = {name: min(n, room.get(name, (0, 0))[0]) for name, n in free.items()}
        healthy, whole = ({name: min(n, room.get(name, (0, 0))[1]) for name, n in x.items()} for x in (healthy, whole))
    return free, healthy, whole


def _given(s: State, vc: str, now_s: float) -> list[tuple[str, Any, float]]:
    """The deals in force by which the virtual cluster lacks cells: (to whom, which cells, until when)."""
    deals = [d for d in deals_of(s.durable.exchange) if vc in (d["owner"], d["tenant"]) and d["end_s"] > now_s]
    given = [(d["tenant"], d["lot"], d["end_s"]) for d in deals if d["owner"] == vc]
    return given + [(d["owner"], d["in_return"], d["end_s"]) for d in deals if d["tenant"] == vc and d["in_return"]]


def _where(demand: Demand) -> str:
    kinds = {Scope.MACHINE: " on one machine", Scope.RACK: " in one rack", Scope.CLUSTER: ""}
    place = f" within one {demand.within}" if demand.within else kinds[demand.scope]
    return f"{place}, in the pinned cell {demand.pinned}" if demand.pinned else place


def _users(s: State, vc: str) -> str:
    """Which apps hold how many of the virtual cluster's own GPUs, the largest five."""
    counts: dict[str, int] = {}
    for app_id in s.durable.leases.by_app:
        app = s.durable.apps[app_id]
        mine = s.leases_of(app_id) if app.vc == vc else ()
        own = sum(len(x.gpus) for x in mine if x.guaranteed and x.state != REVOKING)
        if own:
            counts[app.name or app_id] = own
    most = sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:5]
    return ", ".join(f"{name} uses {n}" for name, n in most) or "the rest is reserved for gangs that borrow"


def _lent(to: str, lot: Any, end_s: float) -> str:
    kind, count = (lot["cell_type"], lot["count"]) if isinstance(lot, Mapping) else (lot[1], lot[2])
    until = datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{count} x {kind} lent to {to} until {until}"
