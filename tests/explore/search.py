"""Breadth-first search through everything that can happen in a world, so that the first failure has a shortest path.

A state is reached by playing its moves from the beginning; its successors each start from a copy of it (`Copies`).
States are told apart by `digest`.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import io
import math
import pickle
import re
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, KeysView
from multiprocessing.pool import Pool
from multiprocessing.sharedctypes import RawArray
from typing import Any, ClassVar

from pycontrol.arbiter.ledger.durable import AppRecord
from pycontrol.arbiter.ledger.lease import Lease, Reservation
from pycontrol.model.cluster import Ask, Container
from pycontrol.model.events import WorkerPlan
from pycontrol.model.topology import Gpu
from tests.explore import oracles
from tests.explore.kinds import BEGIN_S, SETTINGS
from tests.explore.world import World

Path = tuple[str, ...]
AMOUNTS = {
    "leases",
    "renewals",
    "revocations",
    "n_avg",
    "clock_at_arrival",
    "attained_gpu_s",
    "slowed_gpu_s",
    "slowdown",
    "launching_gpu_s",
    "work_done_gpu_s",
    "launches",
    "preempted_s",
    "submitted_s",
    "arrived_s",
    "granted_s",
    "started_s",
    "first_container",
    "demand_gpus",
}
"""Fields of the durable state that count what was; they are left out of digests, so that the future can repeat."""
PASSING = {"contention", "submitted_s"}
"""The same of other values."""
ID = re.compile(r"standin-\w+-[\d.]+|[a-z]{0,2}\d+(?:\.\d+)+|[a-z]?1\d{3}\b")
LETTERS = str.maketrans("0123456789.", "ABCDEFGHIJK")
"""For the digits of times, which are no ids."""
LONG_AGO_S = -1.5 * SETTINGS.lease_s
"""Moments before this one, counted from now, are one."""
TIMELESS = {Gpu, Ask, Container, WorkerPlan}
STEPS_MAX = 400
"""The most moves until a quiet continuation repeats itself."""
SPIN_MAX = 12


class Copies(pickle.Pickler):
    """Pickles a world; pickle itself cannot do functions within functions, and views of keys."""

    codes: ClassVar[dict[int, tuple[types.CodeType, Any]]] = {}

    def reducer_override(self, o: Any) -> Any:
        """Such a function by its code and what it refers to."""
        if isinstance(o, KeysView):
            return _keys, (list(o),)
        if type(o) is not types.FunctionType or "<" not in o.__qualname__:
            return NotImplemented
        self.codes[id(o.__code__)] = (o.__code__, o.__defaults__)
        cells = o.__closure__ or ()
        return (
            _function,
            (o.__module__, id(o.__code__), len(cells)),
            [c.cell_contents for c in cells],
            None,
            None,
            _fill,
        )

    @classmethod
    def of(cls, world: World) -> bytes:
        """The world as bytes; `pickle.loads` makes one of them, in this process."""
        stream = io.BytesIO()
        cls(stream, pickle.HIGHEST_PROTOCOL).dump(world)
        return stream.getvalue()


def _keys(of: list[Any]) -> KeysView[Any]:
    return dict.fromkeys(of).keys()


def _function(module: str, code: int, cells: int) -> types.FunctionType:
    text, defaults = Copies.codes[code]
    closure = tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(text, sys.modules[module].__dict__, text.co_name, defaults, closure)


def _fill(function: types.FunctionType, values: list[Any]) -> None:
    for cell, x in zip(function.__closure__ or (), values, strict=True):
        cell.cell_contents = x


def digest(world: World) -> int:
    """The state in 64 bits: moments count from now, ids by the order in which they occur, amounts not at all."""
    a, d = world.arbiter, world.shadow
    said: list[str] = []
    for part in (
        (list(d.apps.values()), list(d.leases.each()), list(d.reservations.each()), d.switches, d.boosts),
        (world.left, [n.bad_gpus for n in world.nodes.values()], sorted(world.apps), world.asks, world.rm_up),
        (world.containers, world.running, world.directives, [s.snapshot.round_id for s in world.solves]),
        (world.connected, world.inbox, world.said, world.asking, world.held, world.plans, world.stopping),
        (a.cluster.ready, a.cluster.recovering_until_s, a.cluster.closed, sorted(a.agents), a.agents.unmet),
        [(w.app_id, w.plan, w.state, w.container_id, w.refusals, w.retry_at_s, w.void) for w in a.workers],
        (a.timer.wanted_s, a.next_wake_s(world.now), a.clerk.kills_sent, a.rounds.current is not None),
        (world.loans(), world.nodes.keys(), world.plain_wants, world.registered),
    ):
        _say(part, world.now, said.append)
    names: dict[str, str] = {}
    text = ID.sub(lambda m: names.setdefault(m[0], f"#{len(names)}"), "".join(said))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _say(x: Any, now_s: float, say: Callable[[str], None]) -> None:
    kind: Any = type(x)
    if kind is str or kind is int or kind is bool or x is None:
        say(f"{x},")
    elif kind is float:
        moment = 0.5 * BEGIN_S < x < 2 * BEGIN_S
        text = f"@{max(x - now_s, LONG_AGO_S):.2f}," if moment else f"{x:.2f},"
        say(text.translate(LETTERS))
    elif kind is dict or isinstance(x, dict):
        for k, v in x.items():
            say(f"{k}:") if isinstance(k, str) else _say(k, now_s, say)
            _say(v, now_s, say)
        say(";")
    elif kind is list or kind is tuple:
        for v in x:
            _say(v, now_s, say)
        say(";")
    elif kind is set or kind is frozenset:
        say(",".join(sorted(map(_alone(now_s), x))))
        say(";")
    elif kind in TIMELESS:
        say(_timeless(x))
    elif dataclasses.is_dataclass(x):
        for name in _fields(kind):
            _say(getattr(x, name), now_s, say)
        say(";")
    else:
        say(f"{x},")


def _alone(now_s: float) -> Callable[[Any], str]:
    def alone(x: Any) -> str:
        said: list[str] = []
        _say(x, now_s, said.append)
        return "".join(said)

    return alone


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    left_out = AMOUNTS if kind in (AppRecord, Lease, Reservation) else PASSING
    return tuple(f.name for f in dataclasses.fields(kind) if f.name not in left_out)


@functools.cache
def _timeless(x: Any) -> str:
    return repr(x)


class Shared:
    """Digests that all processes of a search know.

    Where two write at once, or its room is full, one may get lost: it is examined again.
    """

    def __init__(self, slots: int = 1 << 24) -> None:
        self._slots, self._mask = RawArray("Q", slots), slots - 1

    def __contains__(self, at: object) -> bool:
        return isinstance(at, int) and self._slots[self._slot(at)] == at

    def update(self, digests: Iterable[int]) -> None:
        """Adds them."""
        for at in digests:
            self._slots[self._slot(at)] = at

    def _slot(self, at: int) -> int:
        slot = at & self._mask
        for _ in range(64):
            if self._slots[slot] in (0, at):
                break
            slot = (slot + 1) & self._mask
        return slot


class Continuation:
    """The quiet continuations of states: what is due happens in turn, nothing disturbs; none may end in a stall.

    `good`: digests of states whose continuation is known to be right.
    """

    def __init__(self, good: Shared | set[int] | None = None) -> None:
        self.good = set() if good is None else good
        self.moves: list[str] = []
        """What happened in the newest continuation."""
        self.added: list[int] = []
        """The newest of `good`, until `expand` tells them."""

    def check(self, world: World) -> None:
        """Raises if the world's quiet continuation breaks a promise, or cycles or ends while somebody waits in vain.

        The world changes by `moves`, which are cleared first.
        """
        seen: dict[int, tuple[int, float]] = {}
        glances: list[oracles.Glance] = []
        moves = self.moves
        moves.clear()
        spins = 0
        while True:
            at = digest(world)
            if at in self.good:
                break
            glances.append(oracles.Glance(world))
            due = world.due()
            if at in seen or not due:
                first, since_s = seen.get(at, (-1, -math.inf))
                problem = oracles.quiet(world, glances[first:])
                oracles.expect(world.now > since_s or not self._stands(world), "time stands still")
                if problem and due and not self._confirmed(world):
                    problem = ""
                oracles.expect(not problem, problem)
                break
            seen[at] = len(glances) - 1, world.now
            oracles.expect(len(moves) < STEPS_MAX, "nothing repeats itself")
            before_s = world.now
            moves.append(due[0])
            world.do(due[0])
            spins = spins + 1 if due[0] == "wake" and world.now - before_s < 1e-3 else 0
            oracles.expect(spins < SPIN_MAX, f"it wakes {SPIN_MAX} times at once")
            oracles.state(world)
        self.good.update(seen)
        self.added += seen

    @staticmethod
    def _stands(world: World) -> bool:
        """Whether something is due again and again, and no time passes; a round has several parts at one moment."""
        begin_s = world.now
        for _ in range(3 * SPIN_MAX):
            due = world.due()
            if not due or world.now > begin_s:
                return False
            world.do(due[0])
        return True

    @staticmethod
    def _confirmed(world: World) -> bool:
        """Whether it stays so in many more rounds, as digests leave amounts out that may decide later."""
        glances = []
        for _ in range(STEPS_MAX):
            due = world.due()
            if not due:
                break
            world.do(due[0])
            glances.append(oracles.Glance(world))
            if not oracles.quiet(world, glances):
                return False
        return True


@dataclasses.dataclass
class Found:
    """What a search found. `failure`: the first and shortest; empty if there is none."""

    states: int = 0
    """With all that can happen next."""
    examined: int = 0
    """Distinct states in which all that must hold was checked: `states` and those of their quiet continuations."""
    moves: int = 0
    depth: int = 0
    """The most moves from the beginning to one of `states`."""
    closed: bool = False
    seconds: float = 0.0
    failure: str = ""
    path: Path = ()

    def __str__(self) -> str:
        per_s = self.examined / max(self.seconds, 1e-9)
        said = f"{self.examined:,} states, {self.states:,} with all moves ({self.moves:,}), depth {self.depth}"
        said += f"{', closed' if self.closed else ''}, {self.seconds:.0f} s, {per_s:.0f} states/s"
        return f"{said}\nBROKEN: {self.failure}\nmoves: {'; '.join(self.path)}" if self.failure else said


def beginnings(kind: str) -> list[Path]:
    """Where searches begin: nothing is there; of either app, or of both, containers are to start, a round waits for an
    answer, containers run.

    So disturbances of what goes on are near.
    """
    found: list[Path] = [()]
    for arrivals in (("plain arrives",), ("agent arrives",), ("agent arrives", "plain arrives")):
        world, path = World(kind), list[str]()
        to_start, asked = Path(), Path()
        while len(path) < len(arrivals) or world.due() != ["wake"] or not world.running:
            path.append(arrivals[len(path)] if len(path) < len(arrivals) else world.due()[0])
            world.do(path[-1])
            to_start = to_start or (tuple(path) if world.directives else ())
            asked = asked or (tuple(path) if "agent lapses" in world.moves() else ())
        found += [x for x in (to_start, asked, tuple(path)) if x]
    return found


Step = tuple[int, Path, str]
"""(digest, moves, what is broken there)."""
_continuation = Continuation()


def _begin(good: Shared | None = None) -> None:
    """A search begins in this process; `good`: it is one of several."""
    global _continuation
    _continuation = Continuation(good)
    if good is None:
        return
    gc.freeze()
    gc.set_threshold(20_000, 50, 1000)  # copies of worlds come and go


def expand(job: tuple[str, Path]) -> tuple[list[Step], list[int]]:
    """The successors of a state, each examined with its quiet continuation, and what this process examined first."""
    kind, path = job
    world = World(kind)
    for name in path:
        world.do(name)
    stored, found = Copies.of(world), list[Step]()
    for name in world.moves():
        after: World = pickle.loads(stored)
        problem, at = "", 0
        _continuation.moves.clear()
        try:
            after.do(name)
            at = digest(after)
            if at not in _continuation.good:
                oracles.state(after)
                _continuation.check(after)
        except Exception as e:
            problem = f"{type(e).__name__}: {e}\n  events of the last move:\n    {_story(after)}"
        found.append((at, (*path, name, *(_continuation.moves if problem else ())), problem))
    added, _continuation.added = _continuation.added, []
    return found, added


def _story(world: World) -> str:
    return "\n    ".join(str(e)[:300] for e in world.events)


def search(
    kind: str,
    states_max: int = 1 << 40,
    seconds: float = 1e9,
    processes: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Found:
    """Searches until it fails, is closed, or has reached that many states or taken so long."""
    found, begun_s = Found(), time.monotonic()
    seen, examined, level = set[int](), set[int](), beginnings(kind)
    with Pool(processes, _begin, (Shared(),)) if processes else _Here() as pool:
        while level and not found.failure:
            new: list[Path] = []
            for steps, added in pool.imap(expand, ((kind, p) for p in level), chunksize=16 if processes else 1):
                found.moves += len(steps)
                examined.update(added)
                for at, path, problem in steps:
                    if problem and not found.failure:
                        found.failure, found.path = problem, path
                    if not problem and at not in seen:
                        seen.add(at)
                        new.append(path)
                if found.failure or len(seen) >= states_max or time.monotonic() - begun_s > seconds:
                    break
            level, found.seconds = new, time.monotonic() - begun_s
            found.states, found.examined = len(seen), len(examined | seen)
            found.depth = max(found.depth, *map(len, new)) if new else found.depth
            tell(str(found))
            if len(seen) >= states_max or found.seconds > seconds:
                return found
    found.closed = not level and not found.failure
    return found


class _Here:
    """As a pool, in this process."""

    def __init__(self) -> None:
        _begin()

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def imap(self, do: Callable[[Any], Any], jobs: Iterable[Any], **_: object) -> Iterator[Any]:
        """One after the other."""
        return map(do, jobs)
