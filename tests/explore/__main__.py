"""Explores for some minutes and prints what was reached, or the shortest failure: `make explore MINUTES=60`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.explore.kinds import KINDS
from tests.explore.search import search


def main() -> int:
    """Searches each kind of world for its share of the time; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kind", choices=list(KINDS), action="append", help="these only")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    kinds, broken = args.kind or list(KINDS), 0
    for kind in kinds:
        print(f"{kind}:", flush=True)
        found = search(kind, seconds=60 * args.minutes / len(kinds), processes=args.processes, tell=_tell)
        broken += bool(found.failure)
    return bool(broken)


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
