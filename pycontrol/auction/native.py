"""The compiled engine: solver.c called with ctypes. Missing if no C compiler was found at installation."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pycontrol.auction.compact import Compact, Ints, compact
from pycontrol.auction.instance import Instance, Rooms, Solved, Without
from pycontrol.model.auction import Bid
from pycontrol.model.topology import Scope

NODES_MAX = 20_000_000
"""Limit of search nodes per solve; the time budget ends a solve long before."""

_POINTERS = (
    "first gain use room level dim_type gangs size scope size_gpus size_type pin_first pin_host pin_gpus free_gpus"
    " host_type rack rack_type"
)
_OF_COMPACT = "first use room level dim_type gangs size scope size_type host_type rack"


class _AuctionStruct(ctypes.Structure):
    """`struct auction` of solver.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("apps", "rows", "dims", "hosts", "racks", "sizes", "chain")),
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
    )


@cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).with_name("_solver.so")
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    struct, pointers = ctypes.POINTER(_AuctionStruct), [ctypes.c_void_p] * 5
    library.isonomy_auction.argtypes = (struct, ctypes.c_double, ctypes.c_int64, ctypes.c_int32, *pointers)
    library.isonomy_auction.restype = ctypes.c_int
    return library


def available() -> bool:
    """Whether the compiled engine is installed."""
    return _library() is not None


def solve(bids: Sequence[Bid], instance: Instance, budget_s: float, payments: bool) -> Solved:
    """Solves the whole auction; a gap remains if time ran out or no packing was found.

    Raises RuntimeError if the engine is missing, MemoryError, or ValueError for a malformed auction.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the compiled engine is missing: install a C compiler and run `make setup`")
    if not bids or not any(instance.free.values()):
        return Solved({b.app_id: None for b in bids}, 0.0, {}, {})
    c = compact(bids, instance)
    apps, hosts, racks, sizes = len(bids), len(c.hosts), len(c.racks), len(c.sizes)
    number = {h: k for k, h in enumerate(c.hosts)}
    pins = np.array([(number[h], n) for pins in c.pins for h, n in pins.items()], np.int32).reshape(-1, 2)
    arrays: dict[str, npt.NDArray[Any]] = {name: getattr(c, name) for name in _OF_COMPACT.split()}
    arrays |= {"size_gpus": c.sizes, "free_gpus": c.free, "rack_type": c.rack_type}
    arrays["gain"] = np.ascontiguousarray(c.gain, np.float64)
    arrays["pin_first"] = np.array([0, *accumulate(len(p) for p in c.pins)], np.int32)
    arrays |= zip(("pin_host", "pin_gpus"), np.ascontiguousarray(pins.T), strict=True)
    counts = (apps, len(c.rows), len(c.room), hosts, racks, sizes, int(c.chain))
    task = _AuctionStruct(*counts, **{name: array.ctypes.data for name, array in arrays.items()})
    choice = np.zeros(apps, np.int32)
    value, bound = np.zeros(apps + 1), np.zeros(apps + 1)
    at_host, at_rack = np.zeros((sizes, hosts), np.int32), np.zeros((sizes, racks), np.int32)
    out = (a.ctypes.data for a in (choice, value, bound, at_host, at_rack))
    status = library.isonomy_auction(ctypes.byref(task), budget_s, NODES_MAX, int(payments), *out)
    if status == -1:
        raise MemoryError("no memory for the auction")
    if status:
        raise ValueError("the auction is malformed")
    gained, most = value.tolist(), bound.tolist()
    rows = {bid.app_id: c.rows[j] for bid, j in zip(bids, choice.tolist(), strict=True)}
    nothing = -sum(math.log(b.rho_nothing) for b in bids)
    without = {
        b.app_id: Without(nothing + math.log(b.rho_nothing) + gained[i], max(0.0, most[i] - gained[i]))
        for i, b in enumerate(bids)
        if payments and rows[b.app_id] is not None
    }
    return Solved(rows, max(0.0, most[-1] - gained[-1]), without, _rooms(c, at_host, at_rack))


def _rooms(c: Compact, at_host: Ints, at_rack: Ints) -> Rooms:
    rooms: dict[tuple[int, Scope, str], Sequence[str]] = {}
    for scope, places, at in ((Scope.MACHINE, c.hosts, at_host), (Scope.RACK, c.racks, at_rack)):
        for k in range(len(c.sizes)):
            used = np.flatnonzero(at[k]).tolist()
            if used:
                gpu_type = c.types[c.size_type[k]] if c.size_type[k] >= 0 else ""
                rooms[int(c.sizes[k]), scope, gpu_type] = [places[p] for p in used for _ in range(at[k, p])]
    return rooms
