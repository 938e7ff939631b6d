"""`python -m tests.digests` (make digests): are today's decisions those that are kept? `--update` keeps today's."""

from __future__ import annotations

import argparse
import difflib
import itertools
import lzma
import multiprocessing
import sys
from pathlib import Path

from pycontrol.policies import registry
from tests.digests import workloads
from tests.digests.record import Recorder

KEPT = Path(__file__).parent / "kept"
CONTEXT = 4
SHOWN = 40
"""Lines of a difference that are printed."""


def decisions(policy: str, names: list[str], validate: bool = False) -> Recorder:
    """The decisions of a policy on these workloads."""
    recorder = Recorder()
    for name in names:
        workloads.play(name, policy, recorder, validate)
    return recorder


def kept(policy: str) -> list[str]:
    """The kept text of a policy."""
    return lzma.decompress((KEPT / f"{policy}.xz").read_bytes()).decode().splitlines()


def section(lines: list[str], names: list[str], policy: str) -> list[str]:
    """The parts of a policy's text that are of these workloads."""
    heads = {f"# {name} {policy}" for name in workloads.names()}
    wanted, found, inside = {f"# {name} {policy}" for name in names}, [], False
    for line in lines:
        if line in heads:
            inside = line in wanted
        if inside:
            found.append(line)
    return found


def difference(policy: str, names: list[str], validate: bool = False) -> list[str]:
    """The first lines that differ from the kept text, with context; empty if none do."""
    before, now = section(kept(policy), names, policy), decisions(policy, names, validate).lines
    if before == now:
        return []
    k = next((k for k, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    where = next(line for line in reversed(before[: k + 1]) if line.startswith("# ") and not line.startswith("# life"))
    old, new = (lines[max(0, k - CONTEXT) : k + SHOWN] for lines in (before, now))
    return [where, *itertools.islice(difflib.unified_diff(old, new, "kept", "today", n=CONTEXT, lineterm=""), SHOWN)]


def _update(policy: str) -> tuple[str, int]:
    found = decisions(policy, list(workloads.names()))
    if wrong := [line for line in found.lines if line.startswith("# violation")]:
        raise SystemExit(f"{policy}: not kept: {wrong[0]}")
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{policy}.xz").write_bytes(lzma.compress("\n".join(found.lines).encode(), preset=9))
    return policy, found.starts


def _compare(task: tuple[str, list[str], bool]) -> tuple[str, list[str]]:
    return task[0], difference(*task)


def main() -> int:
    """Compares, or updates."""
    parser = argparse.ArgumentParser(prog="python -m tests.digests", description=__doc__)
    parser.add_argument("policies", nargs="*", default=list(registry.POLICIES), metavar="POLICY")
    parser.add_argument("--workload", action="append", choices=list(workloads.names()), help="only these workloads")
    parser.add_argument("--update", action="store_true", help="keep today's decisions; the commit names the rule")
    parser.add_argument("--validate", action="store_true", help="check the Arbiter's state after each step")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    names = args.workload or list(workloads.names())
    differing = 0
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        if args.update:
            for policy, starts in pool.imap(_update, args.policies):
                print(f"{policy}: {starts} starts", flush=True)
            return 0
        for policy, lines in pool.imap(_compare, [(p, names, args.validate) for p in args.policies]):
            differing += bool(lines)
            print(f"{policy}: {'DIFFERS in ' if lines else 'the same'}" + "\n  ".join(lines), flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
