"""`python -m tests.whynot [FIRST] [ROUNDS]`: random rounds, counted by kind; the exit status is 1 if any is wrong."""

from __future__ import annotations

import sys
import time

from pycontrol.simulation.whynot import Kind
from tests.whynot.rounds import run


def main(first: int, rounds: int) -> int:
    """The exit status."""
    begun_s = time.process_time()
    tally = run(range(first, first + rounds))
    for kind in Kind:
        print(f"{kind}: helps {tally.helps[kind]} times, found {tally.found[kind]}, came true {tally.came_true[kind]}")
    print(
        f"{tally.asked} of {tally.rounds} rounds asked, {tally.unchanged} held unchanged, {tally.inexact} without an"
        f" exact copy; {time.process_time() - begun_s:.0f} s of CPU"
    )
    print(*tally.problems(), sep="\n")
    return 1 if tally.problems() else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0, int(sys.argv[2]) if len(sys.argv) > 2 else 10_000))
