"""solver.c under AddressSanitizer and UndefinedBehaviorSanitizer, driven by random auctions (auction_driver.c)."""

from __future__ import annotations

import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "pycontrol" / "auction"
OPTIONS = (
    "-g",
    "-O1",
    "-std=gnu11",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
WHY_NOT = "skipped: needs cc with libasan and libubsan (Debian: apt-get install gcc)"
BATCH = 200


@cache
def driver() -> Path | None:
    """The program, built again; None where no compiler has the sanitizers."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not (SOURCES / "solver.c").exists():
        return None
    folder = HERE.parents[1] / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "auction_driver"
    command = [compiler, *OPTIONS, f"-I{SOURCES}", str(HERE / "auction_driver.c"), "-lm", "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    return program if built.returncode == 0 and _runs(program) else None


def _runs(program: Path) -> bool:
    return subprocess.run([program, "0", "0"], capture_output=True, check=False).returncode == 0


def run(first: int, last: int, limit_s: float = 600.0) -> str:
    """What is wrong with the auctions of these seeds; empty where nothing is."""
    program = driver()
    if program is None:
        return WHY_NOT
    command = [str(program), str(first), str(last)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)}: not done after {limit_s:g} s"
    return "" if done.returncode == 0 else f"{' '.join(command)}:\n{done.stdout[-500:]}\n{done.stderr[-3000:]}"


def look(seconds: float, seed: int) -> str:
    """The first fault within a time."""
    end_s, first = time.monotonic() + seconds, seed
    while time.monotonic() < end_s:
        problem = run(first, first + BATCH)
        if problem:
            return problem
        first += BATCH
    return ""
