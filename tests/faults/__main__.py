"""`python -m tests.faults`: seeds as simulated runs; a failing one is told as a story and shrunk."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.clock import Violation
from tests.faults.forever import Found, play_on
from tests.faults.marks import never
from tests.faults.schedule import Schedule, draw

if TYPE_CHECKING:
    from tests.faults.world import World

HERE = Path(__file__).parent
PROGRESS_S = 30.0
FOUND = HERE.parents[1] / "build" / "faults"
Outcome = tuple[int, str, str, float, dict[str, int]]
"""(seed, kind of check, what broke, CPU seconds, marks reached); the kind is empty where nothing broke."""


def play(schedule: Schedule) -> tuple[str, str, str]:
    """(kind, text, about) of what broke; empty where nothing did."""
    kind, text, about, _ = _play(schedule)
    return kind, text, about


def _marked(schedule: Schedule) -> Found:
    kind, text, _, world = _play(schedule)
    return kind, text, dict(world.oracles.marks.seen)


def _play(schedule: Schedule) -> tuple[str, str, str, World]:
    from tests.faults.world import World

    world = World(schedule)
    try:
        world.run()
    except Violation as e:
        return e.kind, str(e), e.about, world
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        text = f"{type(e).__name__}: {e} at {Path(where.filename).name}:{where.lineno}"
        if schedule.get("traceback"):
            traceback.print_exc()
        return "crash", text, "", world
    return "", "", "", world


def _seed(seed: int) -> Outcome:
    begun = time.process_time()
    kind, text, marks = _marked(draw(seed))
    return seed, kind, text, time.process_time() - begun, marks


def _ready() -> None:
    """Each process has all code before its first seed; what was imported is never looked through for garbage."""
    import tests.faults.world  # noqa: F401

    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run_seeds(seeds: range, jobs: int, stop_at: int, progress: bool = False) -> list[Outcome]:
    """Plays seeds in processes, in order; the failing ones with what broke. Ends with sums and what was not reached."""
    found, reached = list[Outcome](), set[str]()
    begun, cpu_s, done, told_s = time.time(), 0.0, 0, time.time()
    with multiprocessing.get_context("fork").Pool(jobs, _ready, maxtasksperchild=200) as pool:
        for outcome in pool.imap(_seed, seeds, chunksize=2):
            seed, kind, text, took_s, marks = outcome
            cpu_s, done = cpu_s + took_s, done + 1
            reached.update(marks)
            if kind:
                found.append(outcome)
                print(f"seed {seed}: {text[:300]}", flush=True)
                if len(found) >= stop_at:
                    pool.terminate()
                    break
            if progress and time.time() - told_s >= PROGRESS_S:
                told_s = time.time()
                print(
                    f"... {done} of {len(seeds)} seeds, {len(found)} failed, {cpu_s / done:.3f} s of CPU each",
                    flush=True,
                )
    kinds = ", ".join(f"{n} {k}" for k, n in Counter(k for _, k, *_ in found).most_common())
    print(
        f"{done} seeds, {len(found)} failed ({kinds or 'none'}), {time.time() - begun:.0f} s, "
        f"{cpu_s:.0f} s of CPU, {cpu_s / max(1, done):.3f} a seed"
    )
    print(never(reached))
    return found


def run_files(files: list[Path]) -> bool:
    """Plays schedules that are kept in files; whether one fails."""
    failed = 0
    for file in files:
        kind, text, _ = play(json.loads(file.read_text()))
        failed += bool(kind)
        if kind:
            print(f"{file.name}: {text[:300]}", flush=True)
    print(f"{len(files)} files, {failed} failed")
    return bool(failed)


def seeds_of(text: str, first: int) -> range:
    """`500` seeds from the first on, or `a..b` with both ends."""
    low, dots, high = text.partition("..")
    return range(int(low), int(high) + 1) if dots else range(first, first + int(text))


def tell(schedule: Schedule, lines: int, always: bool = False) -> bool:
    """Plays one schedule and prints what broke and the story of the GPU or app; `always`: the story in any case."""
    kind, text, about, world = _play(schedule)
    if not kind and not always:
        print("nothing broke")
        return False
    common = {"fault", "rm", "plane", "plugin", "world", "round"}
    mine = [x for x in world.sim.story if not about or x[1] in common or about in x[1] or about in x[2]]
    for at_s, who, what in mine[-lines:]:
        print(f"{at_s:9.3f}  {who:<18} {what}")
    print(text or "nothing broke")
    return bool(kind)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and tell its story")
    parser.add_argument(
        "--file",
        type=Path,
        nargs="+",
        help="play the schedule in this file and tell its story; in several: say which break",
    )
    parser.add_argument("--seeds", default="", help="play so many, or those from a to b: a..b")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--forever", action="store_true", help="play without end, and keep what fails in build/faults")
    parser.add_argument("--batches", type=int, default=0, help="with --forever: end after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-at", type=int, default=10, help="stop after so many failures")
    parser.add_argument("--keep-going", action="store_true", help="never stop before the last seed")
    parser.add_argument("--shrink", type=Path, help="write the failing schedule, as small as can be, to this file")
    parser.add_argument("--lines", type=int, default=120)
    parser.add_argument("--story", action="store_true", help="tell all, also where nothing broke")
    parser.add_argument("--traceback", action="store_true")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names must have one order in every process
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.faults", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    if args.forever:
        first = args.first if args.batches else int(time.time())
        return bool(play_on(first, args.jobs, FOUND, _marked, _ready, args.batches))
    if args.seeds:
        stop_at = sys.maxsize if args.keep_going else args.stop_at
        return bool(run_seeds(seeds_of(args.seeds, args.first), args.jobs, stop_at, progress=True))
    if args.file and len(args.file) > 1:
        return run_files(args.file)
    schedule = json.loads(args.file[0].read_text()) if args.file else draw(args.seed)
    if args.traceback:
        schedule["traceback"] = True
    if args.shrink:
        from tests.faults.shrink import shrink

        schedule = shrink(schedule, play)
        args.shrink.write_text(json.dumps(schedule, indent=1) + "\n")
    return tell(schedule, args.lines if not args.story else 100_000, args.story)


if __name__ == "__main__":
    sys.exit(main())
