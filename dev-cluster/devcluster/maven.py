"""Runs Maven: `maven.py ARGUMENTS`. Its downloads are one line of progress, which names the present one; of the rest
only errors are shown.

Imports the standard library alone, because `make java` runs it before there is a virtual environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

LOG = Path(__file__).resolve().parents[2] / "build" / "maven.log"
DEADLINE_S = 1800.0
EVERY_S, EVERY_S_ON_A_TERMINAL = 10.0, 0.2
DOWNLOADING = re.compile(r"Downloading from \S+: \S+/(\S+)")
DOWNLOADED = re.compile(r"Downloaded from \S+: (\S+) \(([\d.]+) ([kMG]?B)\b")
UNITS_MB = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
WIDTH, CLEAR = 79, "\x1b[K"
"""A longer line would wrap, and could not be written over; what an earlier one had beyond the new one is cleared."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
"""Maven ends colours even where it writes none."""
LEVEL = re.compile(r"\[(\w+)\]")


class Downloads:
    """What was downloaded so far, on standard error: a line that is written over, or one every ten seconds."""

    def __init__(self) -> None:
        self.jars, self.size_mb, self.present = 0, 0.0, ""
        self._begin_s = self._shown_s = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def read(self, line: str) -> None:
        """Counts a line of Maven's, if it tells of a download."""
        if begun := DOWNLOADING.search(line):
            self.present = begun[1]
        elif found := DOWNLOADED.search(line):
            self.jars += found[1].endswith(".jar")
            self.size_mb += float(found[2]) * UNITS_MB[found[3]]
        else:
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= (EVERY_S_ON_A_TERMINAL if self._terminal else EVERY_S):
            self._shown_s = now_s
            self._show("" if self._terminal else "\n")

    def done(self) -> None:
        """Shows the sum, if anything was downloaded."""
        self.present = ""
        if self.size_mb:
            self._show("\n")

    def _show(self, end: str) -> None:
        took_s = time.monotonic() - self._begin_s
        text = f"  Maven downloaded {self.jars} jars, {self.size_mb:.1f} MB in all ({took_s:.0f} s)"
        text += f", now {self.present}" if self.present else ""
        print(f"\r{text[:WIDTH]}{CLEAR}" if self._terminal else text, end=end, file=sys.stderr, flush=True)


def run(arguments: list[str], log: Path, tell: Callable[[str], None]) -> int:
    """Runs `mvn` and returns its exit status; `log` gets all of its output, `tell` each line of its errors."""
    log.parent.mkdir(exist_ok=True)
    downloads, level = Downloads(), "ERROR"  # what comes before the first level says why Maven did not start
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(["mvn", "-B", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as mvn,
    ):
        watchdog = threading.Timer(DEADLINE_S, mvn.kill)
        watchdog.start()
        try:
            for raw in mvn.stdout or ():
                line = COLOUR.sub("", raw)
                kept.write(line)
                downloads.read(line)
                found = LEVEL.match(line)
                level = found[1] if found else level
                if level == "ERROR" and line.strip():
                    tell(line.rstrip())
        finally:
            watchdog.cancel()
            mvn.kill()
    downloads.done()
    return mvn.returncode


if __name__ == "__main__":
    status = run(sys.argv[1:], LOG, lambda line: print(line, flush=True))
    sys.exit(f"mvn failed; all that it said: {LOG}" if status else 0)
