"""`python -m tests.fuzz [TARGET ...] --seconds N`: looks for faults, and keeps what it finds in the corpus.

With atheris (libFuzzer) by coverage, each target in a process of its own; without it by changed and made inputs. What
ends a target lies in tests/fuzz/corpus/TARGET/fault-* afterwards, where the tests try it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.fuzz import solver
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import CORPUS, TARGETS, quiet

LIMIT_S = 20
"""Of one input, on a busy machine."""


def by_chance(name: str, seconds: float, seed: int, at_most: int | None = None) -> list[tuple[bytes, str]]:
    """Inputs that raised within a time (or a number of tries), and how; each place of a fault once."""
    target, rng, faults, places = TARGETS[name], random.Random(seed), list[tuple[bytes, str]](), set[str]()
    corpus, end_s, tries = target.corpus(name), time.monotonic() + seconds, 0
    while time.monotonic() < end_s and (at_most is None or tries < at_most):
        tries += 1
        data = target.make(rng) if target.make and rng.random() < 0.7 else mutated(rng, corpus)
        try:
            with _limited():
                target.run(data)
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            place = f"{type(e).__name__} {last.filename}:{last.lineno}"
            if place not in places:
                places.add(place)
                faults.append((data, "".join(traceback.format_exception(e, limit=-8))))
    return faults


@contextmanager
def _limited() -> Iterator[None]:
    """Raises TimeoutError in an input that takes very long."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def by_coverage(name: str, seconds: float, seed: int) -> list[tuple[bytes, str]]:
    """The same with libFuzzer, which learns which inputs reach further."""
    found = CORPUS.parents[2] / "build" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.guided",
        name,
        str(found),
        str(CORPUS / name),
        f"-max_total_time={seconds:.0f}",
        f"-seed={seed}",
        "-timeout=25",
        "-rss_limit_mb=4096",
        "-max_len=65536",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    before = set(found.iterdir())
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return []
    new = [f for f in sorted(found.iterdir()) if f not in before and f.name.startswith(("crash-", "timeout-", "oom-"))]
    said = done.stderr[-3000:]
    return [(f.read_bytes(), f"{f.name}\n{said}") for f in new] or [(b"", said)]


def main() -> int:
    """The exit status is 1 where a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join([*TARGETS, 'solver'])}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31)
    parser.add_argument("--plain", action="store_true", help="without atheris")
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - {*TARGETS, "solver"})
    if unknown:
        parser.error(f"no target {unknown[0]}; there are {', '.join([*TARGETS, 'solver'])}")
    quiet()
    guided = importlib.util.find_spec("atheris") is not None and not options.plain
    print(f"seed {options.seed}, {options.seconds:g} s each, " + ("by coverage" if guided else "by chance"), flush=True)
    failed = False
    for name in options.targets or [*TARGETS, "solver"]:
        if name == "solver":
            problem = solver.look(options.seconds, options.seed)
            print(f"{name}: {problem or 'nothing found'}", flush=True)
            failed |= bool(problem) and not problem.startswith("skipped")
            continue
        faults = (by_coverage if guided else by_chance)(name, options.seconds, options.seed)
        print(f"{name}: {len(faults)} faults" if faults else f"{name}: nothing found", flush=True)
        for data, how in faults:
            print(f"  {_keep(name, data)}\n{how}", flush=True)
        failed |= bool(faults)
    return int(failed)


def _keep(name: str, data: bytes) -> Path:
    """Keeps an input in the corpus."""
    file = CORPUS / name / f"fault-{hashlib.sha256(data).hexdigest()[:12]}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


if __name__ == "__main__":
    sys.exit(main())
