"""`python -m tests.safety [SEED] [EXAMPLES] [strained]`: sharing safety on so many random cases, or one seed again.

`strained`: in all of them apps without Agents borrow all GPUs, and one of the GPUs goes bad.
"""

from __future__ import annotations

import sys
import time
import traceback

from tests.safety.cases import Case, draw
from tests.safety.oracle import complaints
from tests.safety.shrink import shrunk


def problems(case: Case) -> list[str]:
    """What is wrong; an exception is wrong, too."""
    try:
        return complaints(case)
    except Exception:
        return [traceback.format_exc()]


def main(first: int, examples: int, strained: bool = False) -> int:
    """Exit status: 1 if any case fails."""
    failed = 0
    begun_s = time.process_time()
    for seed in range(first, first + examples):
        found = problems(draw(seed, strained))
        if not found:
            continue
        failed += 1
        print(f"seed {seed}: {found[0] if examples == 1 else found[0].strip().splitlines()[-1]}", flush=True)
        if examples == 1:
            case = shrunk(draw(seed, strained))
            print("shrunk to", case, *problems(case), sep="\n")
    print(f"{examples} cases, {failed} failed, {time.process_time() - begun_s:.0f} s of CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    sys.exit(main(seed, int(sys.argv[2]) if len(sys.argv) > 2 else 1, "strained" in sys.argv[3:]))
