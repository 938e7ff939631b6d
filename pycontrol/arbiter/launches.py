"""What Agents tell of their jobs' launches: how many, and how long from a grant to the first step.

Bounded by app, in memory and in the journal: an Agent may tell anything, as often as its stream lets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pycontrol.arbiter.durable import AppRecord
from pycontrol.arbiter.lease import Lease
from pycontrol.model.events import JobProgress

JOBS_KEPT = 4096
"""Jobs of one app whose launches are counted."""
TOLD_AT_ONCE = 64
"""Changed counts in one fact; what is left is told with the next report."""
MEASURED = -1


class Launches:
    """Of all live apps."""

    def __init__(self, live: Iterable[AppRecord]) -> None:
        self._seen = {a.app_id: {job: (n, MEASURED) for job, n in a.launches.items()} for a in live}
        """App -> job -> its newest launch and the step at which that was first heard of. MEASURED: its time is known,
        or it began in an earlier life."""

    def new(self, record: AppRecord, jobs: Iterable[JobProgress]) -> dict[str, int]:
        """Counts that are not what the record says, a bounded number of them."""
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
        """Jobs that made their first step on a grant since the last report, and when that was granted.

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
        """The app has ended."""
        self._seen.pop(app_id, None)
