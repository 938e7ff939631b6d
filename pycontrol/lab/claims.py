"""Generates docs/claims.md from the stored results, and marks rows that are older than their code.

A result has an experiment's claims, the commit, a hash of the code that determines it, a fingerprint of what it
decides, the seeds and the size. A result whose hash and fingerprint both differ from the present code's is stale.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pycontrol.lab.catalogue import EXPERIMENTS
from pycontrol.lab.findings_report import Entry, plain
from pycontrol.lab.kit import Setup
from pycontrol.lab.provenance import code_hash

PAPERS = {
    "themis": "Themis (Mahajan et al., NSDI 2020)",
    "hived": "HiveD (Zhao et al., OSDI 2020)",
    "oef": "OEF (Middleware 2024)",
    "default_policy": "The default policy",
    "outlook": "Estimates",
    "beside": "Beside the newest systems",
}
"""Folder of experiments -> heading, in the page's order."""
HEAD = """# The papers' claims, measured

`isonomy experiment claims` makes this page anew from the results in [results](results): what `isonomy experiment`
found, in simulation. Each row is a claim of a paper, what the paper says, what we measured, and whether it holds;
"on average" where 95 % intervals leave a doubt. Above each table is which command found it, when, with how many
seeds, on how much of the paper's set-up, and on which commit's code; **stale** where the code that decides it (the
experiment's function and all that this names, directly or not, comments and docstrings aside) has changed since, or is
not known, unless the new code was seen to decide and find the same in small. `isonomy experiment claims --refresh`
looks at those, and runs again what decides otherwise, the quickest first. What holds on a part of a paper's set-up,
above all in `quick` runs, may not hold at full size, and the other way round. Conventions, tables and figures are on
the page that `isonomy experiment all --report DIR` writes. Which of Themis' conventions matter, and why its defaults
are what they are, is in [themis.md](themis.md#which-of-them-matter); what the default policy comes to in
[policy.md](policy.md).
"""


FULL = "-full"
"""Ends the file name of a result at full size."""


class BadResults(ValueError):
    """The folder is empty, or contains a file that is not a result."""


@dataclasses.dataclass(frozen=True)
class ClaimResult:
    """One experiment's claims, and the conditions of the run."""

    name: str
    command: str
    day: str
    seeds: int
    size: str
    """quick, full, or empty for the experiment's own."""
    commit: str
    code: str
    """`code_hash` at the time of the run; empty if unknown."""
    claims: tuple[tuple[str, ...], ...]
    """(claim, the paper's value, the value found, verdict, and the reason if stored)."""
    part: str = ""
    """The part of the paper's set-up that was run, if not all."""
    fingerprint: str = ""
    """`fingerprint` at the time of the run; empty if unknown, or if the claims are times."""
    same: tuple[str, ...] = ()
    """Hashes of later code that had the same fingerprint."""
    wall_s: float = 0.0
    """How long the run took; 0 if unknown."""

    def setup(self, **more: Any) -> Setup:
        """How to run it again."""
        most = re.search(r"--seeds (\d+)", self.command)
        seeds = int(most.group(1)) if most else None
        return Setup(quick=self.size == "quick", full=self.size == "full", seeds=seeds, **more)


def folder_of(name: str) -> str:
    """The folder of an experiment's module."""
    return EXPERIMENTS[name].split(".")[2]


def result_of(entry: Entry, commit: str, code: str, fingerprint: str = "") -> ClaimResult:
    """The result to store for an experiment that ran on this code."""
    size = "quick" if entry.quick else "full" if entry.full else ""
    options = [f"--{size}"] if size else []
    options += [f"--seeds {entry.most_seeds}"] if entry.most_seeds else []
    command = " ".join(["isonomy experiment", entry.name, *options])
    claims = tuple((c.claim, c.paper, c.ours, c.verdict, c.why) for c in entry.findings.claims)
    found = entry.findings
    return ClaimResult(
        entry.name,
        command,
        entry.day,
        found.seeds,
        size,
        commit,
        code,
        claims,
        found.size,
        fingerprint,
        wall_s=round(entry.wall_s, 1),
    )


def keep(result: ClaimResult, folder: Path) -> Path:
    """Write a result, replacing the previous one; `full` ones stand beside the others. Returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}{FULL if result.size == 'full' else ''}.json"
    path.write_text(json.dumps(plain(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read(folder: Path, names: Iterable[str]) -> list[ClaimResult]:
    """The results in the order of these names; raises BadResults for a file that is not a known experiment's result."""
    known = [name + end for name in names for end in ("", FULL)]
    found = {path.stem: path for path in sorted(folder.glob("*.json"))} if folder.is_dir() else {}
    strange = sorted(found.keys() - set(known))
    if strange:
        raise BadResults(f"{folder / strange[0]}.json: there is no experiment of that name; delete it")
    if not found:
        raise BadResults(f"{folder}: no results there; isonomy experiment NAME --keep writes them")
    return [_result(found[name]) for name in known if name in found]


def _result(path: Path) -> ClaimResult:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = tuple((c[0], c[1], c[2], c[3], *c[4:5]) for c in data["claims"])
        return ClaimResult(**{**data, "claims": found, "same": tuple(data.get("same", ()))})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadResults(f"{path}: is no result ({error}); run its experiment again with --keep") from error


def is_stale(result: ClaimResult) -> bool:
    """Whether the code that determines the result has changed since the run, and was not seen to find the same."""
    return code_hash(result.name) not in (result.code, *result.same)


def page(results: Sequence[ClaimResult]) -> str:
    """The page's Markdown."""
    parts = [HEAD]
    for paper, title in PAPERS.items():
        mine = [r for r in results if folder_of(r.name) == paper]
        if mine:
            parts.append(f"\n## {title}\n")
        parts += [_section(r) for r in mine]
    return "".join(parts)


def _section(r: ClaimResult) -> str:
    seeds = f", {r.seeds} seeds" if r.seeds > 1 else ", one seed" if r.seeds == 1 else ""
    part = f" ({r.part})" if r.part else ""
    stale = "; **stale**" if is_stale(r) else ""
    size = ", full" if r.size == "full" else ""
    lines = [
        f"\n### {r.name}{size}",
        "",
        f"`{r.command}`, {r.day}{seeds}{part}, commit {r.commit}{stale}.",
        "",
        "| claim | paper | ours | |",
        "| --- | --- | --- | --- |",
        *("| " + " | ".join(_cell(text) for text in _row(*claim)) + " |" for claim in r.claims),
        "",
    ]
    return "\n".join(lines)


def _row(claim: str, paper: str, ours: str, verdict: str, why: str = "") -> tuple[str, ...]:
    return claim, paper, ours, f"{verdict}: {why}" if why else verdict


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
