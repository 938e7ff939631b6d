"""What an experiment decides and claims in small: the second witness, beside the hash of its code, that a kept result
is still true.

A refactoring changes the code and no decision. So where the code's hash differs, the experiment is run again with one
seed and small workloads: the leases that its simulations grant, revoke and end, and the numbers of its claims and
tables, are digested. A result is stale only if that digest differs, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycontrol.arbiter.ledger.facts import Fact, LeaseEnded, LeaseGranted, LeaseMended, LeaseRevoking
from pycontrol.lab.catalogue import load
from pycontrol.lab.findings_report import text
from pycontrol.lab.kit import Setup
from pycontrol.simulation.engine import Simulator

TIMED = frozenset({"beside-kueue", "hived-profile", "oef-fig10", "oef-map", "themis-overheads"})
"""Experiments whose claims are times on this machine: only their code's hash tells."""
DECISIONS = {LeaseGranted: "+", LeaseMended: "+", LeaseRevoking: "!", LeaseEnded: "-"}


@dataclass
class Recorded:
    """What the simulations of one run decided."""

    digest: Any = field(default_factory=hashlib.sha256)
    decisions: list[int] = field(default_factory=list)
    """Of each simulation."""

    def facts(self, found: Iterable[Fact], now_s: float) -> None:
        """Notes the decisions among the facts of a step."""
        for fact in found:
            kind = DECISIONS.get(type(fact))
            if kind:
                gpus = ",".join(sorted(map(str, fact.gpus)))  # type: ignore[union-attr]
                self.digest.update(f"{now_s:.3f} {kind} {getattr(fact, 'app_id', '')} {gpus}\n".encode())
                self.decisions[-1] += 1


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Records each simulation that runs in this process meanwhile."""
    found, run = Recorded(), Simulator.run

    def watched(sim: Simulator) -> Any:
        found.decisions.append(0)
        sim.watchers.append(lambda facts: found.facts(facts, sim.now))
        return run(sim)

    Simulator.run = watched  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        Simulator.run = run  # type: ignore[method-assign]


def fingerprint(name: str, data: Path | None = None) -> str:
    """The digest of an experiment in small; empty for one whose claims are times."""
    if name in TIMED:
        return ""
    with recorded() as found:
        said = load(name)(Setup(quick=True, seeds=1, processes=1, data=data))
    for claim in said.claims:
        found.digest.update(f"{claim.claim}|{claim.ours}|{claim.holds}|{claim.sure}\n".encode())
    for row in (row for t in said.tables for row in t.rows):
        found.digest.update(f"{'|'.join(map(text, row))}\n".encode())
    return str(found.digest.hexdigest()[:16])
