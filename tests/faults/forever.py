"""Plays schedules without end: new seeds, and changes of those that reached something new. Keeps what fails.

What a world reached is a set of marks with how often, in powers of two: a schedule is worth changing if it reached a
mark, or one so often, as none before it.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path

from tests.faults.marks import never
from tests.faults.schedule import ALONE, FAULTS, RARE, Schedule, a_fault, draw
from tests.faults.shrink import shrink

Found = tuple[str, str, dict[str, int]]
"""(kind, text of what broke, marks)."""
PLAYED_AT_ONCE = 4
"""Schedules for each process between two choices."""
CHANGED = 0.6
"""The share of changed schedules."""


class Choice:
    """Which schedules are worth changing."""

    def __init__(self, first: int) -> None:
        self.rng, self._seed = random.Random(f"forever {first}"), first
        self.seen: set[str] = set()
        self.worth: list[Schedule] = []

    def next(self) -> Schedule:
        """A new seed's schedule, or a changed one."""
        self._seed += 1
        if not self.worth or self.rng.random() > CHANGED:
            return draw(self._seed)
        newest = self.worth[-50:]
        return changed(self.rng.choice(newest), self.rng.choice(newest), self.rng, self._seed)

    def learn(self, schedule: Schedule, marks: dict[str, int]) -> list[str]:
        """The marks that were never reached before; keeps the schedule if it did more than any before."""
        reached = {f"{name} {n.bit_length()}" for name, n in marks.items()}
        before = {x.rsplit(" ", 1)[0] for x in self.seen}
        if reached - self.seen:
            self.worth.append(schedule)
        self.seen |= reached
        return sorted(marks.keys() - before)


def changed(schedule: Schedule, other: Schedule, rng: random.Random, seed: int) -> Schedule:
    """A copy with up to three changes: a fault less, a new one, one of another schedule, two at one moment."""
    s = copy.deepcopy(schedule) | {"seed": seed}
    faults = s["faults"]
    for _ in range(rng.randint(1, 3)):
        what = rng.choice(("less", "new", "other", "together", "policy"))
        if what == "less" and faults:
            faults.remove(rng.choice(faults))
        elif what == "new":
            faults.append(a_fault(rng, rng.choice((*FAULTS, *RARE, *ALONE)), s["until"], len(s["apps"])))
        elif what == "other" and other["faults"]:
            faults.append(dict(rng.choice(other["faults"]), app=rng.randint(1, len(s["apps"]))))
        elif what == "together" and len(faults) > 1:
            a, b = rng.sample(faults, 2)
            a["at"] = b["at"] + rng.uniform(0.0, 2.0)
        elif what == "policy":
            s["policy"] = other["policy"]
    s["faults"] = sorted((f for f in faults if f["at"] <= s["until"]), key=lambda f: f["at"])
    s["standby"] = any(f["kind"] in ("failover", "switch") for f in s["faults"])
    return s


def play_on(
    first: int, jobs: int, kept: Path, play: Callable[[Schedule], Found], ready: Callable[[], None], batches: int = 0
) -> int:
    """Plays until it is interrupted, or some batches; the number of failures, each in a file of `kept`."""
    choice, failed, batch = Choice(first), 0, 0
    print(f"from seed {first} on; what fails is kept in {kept}", flush=True)
    kept.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("fork").Pool(jobs, ready, maxtasksperchild=200) as pool:
        while not batches or batch < batches:
            batch += 1
            schedules = [choice.next() for _ in range(PLAYED_AT_ONCE * jobs)]
            for schedule, (kind, text, marks) in zip(schedules, pool.map(play, schedules, chunksize=1), strict=True):
                new = choice.learn(schedule, marks)
                if new and batch > 1:
                    print(f"batch {batch}: first reached: {', '.join(new)}", flush=True)
                if kind:
                    failed += 1
                    file = kept / f"{kind.replace(' ', '_')}-{schedule['seed']}.json"
                    file.write_text(json.dumps(schedule, indent=1) + "\n")
                    print(f"{file}: {text[:300]}", flush=True)
                    small = shrink(schedule, lambda s: (*play(s)[:2], ""))
                    file.write_text(json.dumps(small, indent=1) + "\n")
    print(f"{batch} batches, {failed} failed; {never(x.rsplit(' ', 1)[0] for x in choice.seen)}")
    return failed
