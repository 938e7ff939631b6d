"""Launches of jobs as Agents report them: their number, and the time from a grant to the first step.

Memory and journal entries are bounded for each app, as an Agent may report anything at any rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pycontrol.arbiter.durable import AppRecord
from pycontrol.arbiter.lease import Lease
from pycontrol.model.events import JobProgress

JOBS_KEPT = 4096
"""The most jobs of one app with counted launches."""
TOLD_AT_ONCE = 64
"""Changed counts in one fact; the others follow with the next report."""
MEASURED = -1


class Launches:
    """Launches of all active apps."""

    def __init__(self, live: Iterable[AppRecord]) -> None:
        self._seen = {a.app_id: {job: (n, MEASURED) for job, n in a.launches.items()} for a in live}
        """App -> job -> (newest launch, step of its first report).

        MEASURED instead of a step: the launch was measured, or began before this control plane did.
        """

    def new(self, record: AppRecord, jobs: Iterable[JobProgress]) -> dict[str, int]:
        """Job -> launches, where the count differs from the record's; at most TOLD_AT_ONCE jobs."""
        room, changed = JOBS_KEPT - len(record.launches), dict[str, int]()
        for job in jobs:
            before = record.launches.get(job.job_id)
            if not job.launches or job.launches == before:
                continue
            if before is None:
                room -= 1
            if before is not None or room >= 0:
                changed[job.job_id] = job.launches
            if len(changed) == TOLD_AT_ONCE:
                break
        return changed

    def started(self, app_id: str, jobs: Iterable[JobProgress], leases: Iterable[Lease]) -> list[tuple[str, float]]:
        """(job, time of the grant) for each job that made its first step on a grant since the last report.

        Only the first launch on each grant counts.
        """
        by_job: dict[str, list[Lease]] = {}
        for lease in leases:
            if lease.job_id:
                by_job.setdefault(lease.job_id, []).append(lease)
        seen, found = self._seen.setdefault(app_id, {}), []
        for job in jobs:
            if job.state != "running" or not job.launches:
                continue
            if self._first_step(seen, job, by_job):
                mine = by_job[job.job_id]
                if all(x.container_id == x.first_container for x in mine):
                    found.append((job.job_id, max(x.granted_s for x in mine)))
        return found

    @staticmethod
    def _first_step(seen: dict[str, tuple[int, int]], job: JobProgress, leases: Mapping[str, Sequence[Lease]]) -> bool:
        launch, base = seen.get(job.job_id, (0, MEASURED))
        if job.launches > launch:
            if launch or len(seen) < JOBS_KEPT:
                seen[job.job_id] = (job.launches, job.step)
            return False
        if job.launches < launch or base == MEASURED or job.step <= base or job.job_id not in leases:
            return False
        seen[job.job_id] = (launch, MEASURED)
        return True

    def forget(self, app_id: str) -> None:
        """Drops the launches of an app."""
        self._seen.pop(app_id, None)
