"""`python -m tests.bench.compare OLD NEW`: which ratios of two runs of the benchmarks moved.

Times of two runs are times of two machines or two moments; what was measured beside a baseline of the same run moved
only if the code did. So numbers called a ratio are judged (a tenth is a move), all others are listed with `--all`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOVED = 0.1


def numbers(of: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Each number of a result and where it stands."""
    if isinstance(of, dict):
        for key, value in of.items():
            yield from numbers(value, (*path, str(key)))
    elif isinstance(of, int | float) and not isinstance(of, bool):
        yield path, float(of)


def is_ratio(path: tuple[str, ...]) -> bool:
    """Whether a number was measured beside its own baseline."""
    return any("ratio" in name or "speedup" in name or "times_faster" in name for name in path)


def compared(old: Any, new: Any, everything: bool = False) -> list[str]:
    """A line for each number that moved, the largest moves first, and for what is in one run alone."""
    before, after = dict(numbers(old)), dict(numbers(new))
    moves = []
    for path in before.keys() & after.keys():
        a, b = before[path], after[path]
        if path[0] in ("machine", "load", "at_s") or not (everything or is_ratio(path)) or not a:
            continue
        if abs(b / a - 1.0) > MOVED:
            moves.append((abs(b / a - 1.0), f"{' / '.join(path)}: {a:.4g} -> {b:.4g} ({100 * (b / a - 1):+.0f} %)"))
    lines = [line for _, line in sorted(moves, reverse=True)]
    parts = {part for part in {*old, *new} if isinstance(old.get(part, new.get(part)), dict)}
    for part in sorted(parts):
        for run, name in ((old, "old"), (new, "new")):
            if part not in run or "failed" in run[part]:
                lines.append(f"{part}: not measured in the {name} run ({run.get(part, {}).get('failed', 'left out')})")
    return lines


def main() -> int:
    """Prints what moved; exit status 1 if a ratio did, or a part is missing."""
    files = [Path(a) for a in sys.argv[1:] if not a.startswith("-")]
    if len(files) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    old, new = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    lines = compared(old, new, "--all" in sys.argv[1:])
    print("\n".join(lines) or "no ratio moved by more than a tenth")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
