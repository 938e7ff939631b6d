"""Watches a running cluster's processes: the GPUs that they use, how long containers live, how much memory they need.

The operating system is a witness independent of the journal and the NodeManagers' evidence.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pycontrol.audit.evidence import ContainerInterval
from pycontrol.model.topology import Gpu

LOOK_S = 2.0
OUTLIVE_S = 5.0
"""How long a container's processes may be seen after its recorded end: two looks, and clocks of milliseconds."""
MIB = 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GROWTH, GROWTH_MIB = 2.0, 64.0
"""A program is not flat if it exceeds its undisturbed size by both this factor and this many MiB."""
CONTAINER = re.compile(rb"(?:^|\0)CONTAINER_ID=(\w+)")
HOST = re.compile(rb"(?:^|\0)NM_HOST=([^\0]+)")
GPUS = re.compile(rb"(?:^|\0)CUDA_VISIBLE_DEVICES=([\d,]+)")


@dataclass(frozen=True)
class Use:
    """A process of a container that was given GPUs."""

    pid: int
    container: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Size:
    """The size of a program's process."""

    mib: float
    """Resident memory."""
    threads: int
    files: int
    """Open files."""


@dataclass
class Growth:
    """The largest process of a program while undisturbed, during the faults, and at the end."""

    calm: Size | None = None
    disturbed: Size | None = None
    at_end: Size | None = None

    @property
    def flat(self) -> bool:
        """Whether it never became much larger than it was undisturbed."""
        peak_mib = max((s.mib for s in (self.disturbed, self.at_end) if s), default=0.0)
        return self.calm is None or peak_mib <= max(GROWTH * self.calm.mib, self.calm.mib + GROWTH_MIB)


def use_of(pid: int, environment: bytes) -> Use | None:
    """None for a process that was given no GPUs."""
    container, host, gpus = (p.search(environment) for p in (CONTAINER, HOST, GPUS))
    if not container or not host or not gpus:
        return None
    indices = [int(i) for i in gpus[1].split(b",") if i]
    return Use(pid, container[1].decode(), tuple(Gpu(host[1].decode(), i) for i in indices))


def clashes(uses: Iterable[Use]) -> list[tuple[Gpu, Use, Use]]:
    """GPUs that processes of two containers have, with one process of each."""
    first: dict[Gpu, Use] = {}
    found = {}
    for use in uses:
        for gpu in use.gpus:
            other = first.setdefault(gpu, use)
            if other.container != use.container:
                found[gpu] = (gpu, other, use)
    return list(found.values())


def outlived(seen_s: Mapping[str, float], stays: Mapping[str, ContainerInterval]) -> list[str]:
    """A line for each container whose processes were seen after its NodeManager had recorded its end."""
    return [
        f"{name}: its processes were seen {seen_s[name] - stay.end_s:.1f} s after its recorded end"
        for name, stay in stays.items()
        if name in seen_s
        and stay.end_s is not None
        and stay.end_by == "NodeManager"
        and seen_s[name] > stay.end_s + OUTLIVE_S
    ]


def larger(a: Size | None, b: Size | None) -> Size | None:
    """The largest of each."""
    if a is None or b is None:
        return a or b
    return Size(max(a.mib, b.mib), max(a.threads, b.threads), max(a.files, b.files))


def size_of(pid: int) -> Size | None:
    """None for a process that has ended."""
    proc = Path(f"/proc/{pid}")
    try:
        pages = int((proc / "statm").read_text().split()[1])
        threads = int(re.findall(r"Threads:\s+(\d+)", (proc / "status").read_text())[0])
        return Size(round(pages * PAGE_BYTES / MIB, 1), threads, len(list((proc / "fd").iterdir())))
    except (OSError, IndexError):
        return None


def environment_of(pid: int) -> bytes:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


class Watch:
    """Looks periodically, in a separate thread.

    `processes` gives all processes of the cluster; `programs` those of each program whose size matters.
    """

    def __init__(self, processes: Callable[[], list[int]], programs: Callable[[], Mapping[str, list[int]]]) -> None:
        self._processes, self._programs = processes, programs
        self.seen_s: dict[str, float] = {}
        """When a process of each container with GPUs was last seen, in Unix seconds."""
        self.looks = 0
        self.phase = "calm"
        """The attribute of Growth that it fills."""
        self.growth = defaultdict[str, Growth](Growth)
        self._clashes: dict[tuple[Gpu, str, str], str] = {}
        self._over = threading.Event()
        self._one = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Starts looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the look in progress."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Looks once at all processes; callable from any thread."""
        with self._one:
            self._look()

    def _look(self) -> None:
        uses = [use for pid in self._processes() if (use := use_of(pid, environment_of(pid)))]
        now_s = time.time()
        self.seen_s |= {use.container: now_s for use in uses}
        for gpu, a, b in clashes(uses):
            if all(use_of(u.pid, environment_of(u.pid)) == u for u in (a, b)):  # both live still: at the same time
                text = f"GPU {gpu} was in {a.container} (process {a.pid}) and {b.container} ({b.pid}) at once"
                self._clashes.setdefault((gpu, a.container, b.container), f"{text}, first seen at {now_s:.0f}")
        for program, pids in self._programs().items():
            growth = self.growth[program]
            for size in filter(None, map(size_of, pids)):
                setattr(growth, self.phase, larger(getattr(growth, self.phase), size))
        self.looks += 1

    def sizes(self) -> dict[str, dict[str, dict[str, float] | None]]:
        """The sizes, for the report."""
        return {name: asdict(growth) for name, growth in sorted(self.growth.items())}

    def problems(self, stays: Mapping[str, ContainerInterval]) -> list[str]:
        """The violations that it saw."""
        grown = [
            f"{name} grew from {g.calm} to {g.disturbed} and {g.at_end}"
            for name, g in sorted(self.growth.items())
            if not g.flat
        ]
        blind = [] if self.seen_s else ["the watch saw no process with a GPU"]
        return list(self._clashes.values()) + outlived(self.seen_s, stays) + grown + blind
