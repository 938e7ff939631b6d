"""What an Arbiter decides, as text: a line for each grant, start, renewal, revocation and end of a gang, and for each
round the reasons of the apps that wait. The text says nothing of how the Arbiter represents leases."""

from __future__ import annotations

from collections.abc import Iterable

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import Reasons

_Event = tuple[str, ...]


class Recorder:
    """The lines of one run; `note` is told the facts of each step and the Arbiter after it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.starts = 0
        self._said: dict[str, str] = {}
        """Waiting app -> the reason that was last written."""
        self._leases: dict[tuple[Gpu, bool], tuple[str, str, bool]] = {}
        """(GPU, whether reserved) -> app, job or gang, and whether guaranteed."""

    def begins(self, what: str) -> None:
        """A new workload or a new life of the control plane."""
        self.lines.append(f"# {what}")
        self._said.clear()

    def restored(self, arbiter: Arbiter) -> None:
        """Reads the leases that an Arbiter starts with."""
        self._leases = {
            (gpu, False): (x.app_id, x.job_id or x.gang or x.grant_id, x.guaranteed)
            for gpu, x in arbiter.durable.leases.items()
        } | {
            (gpu, True): (x.app_id, x.gang or x.grant_id, x.guaranteed)
            for gpu, x in arbiter.durable.reservations.items()
        }

    def note(self, rows: Iterable[Fact], arbiter: Arbiter, now_s: float) -> None:
        """Writes the facts of one step: those of a gang in one line, gangs in the order of their first facts."""
        gangs: dict[_Event, list[Gpu]] = {}
        rounds = []
        for fact in rows:
            for gpu in fact.gpus if isinstance(fact, facts.OF_LEASE) else ():
                gangs.setdefault(self._of_gpu(fact, gpu), []).append(gpu)
            if isinstance(fact, facts.RoundHeld):
                rounds.append(fact.receipt)
        for (kind, *rest), gpus in gangs.items():
            self.starts += kind == "start"
            self.lines.append(" ".join([f"{now_s:.3f}", kind, *rest, ",".join(map(str, sorted(gpus)))]))
        if rounds:
            self._reasons(arbiter, now_s, [f"{r.round_id} {r.vc} {r.note}".strip() for r in rounds])

    def _of_gpu(self, fact: Fact, gpu: Gpu) -> _Event:
        leases = self._leases
        match fact:
            case facts.LeaseGranted(_, app_id, grant_id, at_s, end_s, gang, after, own):
                leases[gpu, gpu in after] = (app_id, gang or grant_id, own)
                kind = "reserve" if gpu in after else "grant"
                return kind, app_id, gang or grant_id, f"{at_s:.3f}-{end_s:.3f}", "own" if own else "borrowed"
            case facts.LeaseStarted(_, _, job_id, _, end_s):
                app_id, _, own = leases[gpu, False]
                leases[gpu, False] = (app_id, job_id, own)
                return "start", app_id, job_id, f"{end_s:.3f}", "own" if own else "borrowed"
            case facts.LeaseExtended(_, end_s, counted):
                return "renew" if counted else "shift", *leases[gpu, False][:2], f"{end_s:.3f}"
            case facts.LeaseRevoking(_, end_s, _, cause):
                return "revoke", *leases[gpu, False][:2], f"{end_s:.3f}", str(cause)
            case facts.LeaseIdle():
                return "idle", *leases[gpu, False][:2]
            case facts.LeaseEnded(_, at_s, _, cause):
                app_id, job, _ = leases.pop((gpu, False))
                if (gpu, True) in leases:
                    leases[gpu, False] = leases.pop((gpu, True))
                return "end", app_id, job, f"{at_s:.3f}", str(cause)
            case facts.NextDropped():
                return "drop", *leases.pop((gpu, True))[:2]
            case facts.LeaseBorrowed() | facts.LeaseOwned():
                held = leases[gpu, (gpu, False) not in leases]
                return "borrow" if isinstance(fact, facts.LeaseBorrowed) else "own", *held[:2]
        raise AssertionError(fact)

    def _reasons(self, arbiter: Arbiter, now_s: float, rounds: list[str]) -> None:
        """The rounds, and the reasons that are new since the last one."""
        reasons, told = Reasons(arbiter, now_s), []
        waiting = sorted({*arbiter.agents.unmet, *arbiter.agents.unmanaged_apps})
        for app_id in waiting:
            said = str(reasons.of(app_id))
            if self._said.get(app_id) != said:
                self._said[app_id] = said
                told.append(f"{app_id}: {said}")
        for app_id in self._said.keys() - set(waiting):
            del self._said[app_id]
        self.lines.append(f"{now_s:.3f} round {', '.join(rounds)}: {len(waiting)} wait")
        self.lines += [f"  {line}" for line in told]
