"""The audit: the journal against the NodeManagers' evidence and the ResourceManager's audit log.

Rules: no GPU in two containers at the same time; no container with GPUs that the journal did not lease to its app
at that time; no lease lost; no gang split; each container's CUDA_VISIBLE_DEVICES as granted; no GPU of a
virtual cluster in a stranger's container for longer than one revocation after it was due. A rule without evidence
is listed in `unchecked`, never skipped silently.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from pycontrol.audit.evidence import ContainerInterval, Evidence, YarnRecords
from pycontrol.audit.guarantees import strangers
from pycontrol.audit.history import GangSize, History
from pycontrol.model.topology import Gpu
from pycontrol.runtime.spans import LeaseInterval

CLOCK_S = 2.0
"""Tolerated difference between the clocks of the control plane, the ResourceManager and the nodes."""
RELEASE_S = 30.0
"""How long a lease may outlive its app, until its containers are gone."""
LEAD_S = 60.0
"""The assumed lead of a borrower without a configuration: the longest default."""
REVOCATION_S = 30.0
"""Time besides the lead: a running round and its deadlines, a kill, and the container's end."""
GANG_DEADLINE_S = 60.0
"""A gang starts whole, or stops whole, within this time (the default grant time-out)."""


@dataclass
class AuditFindings:
    """What was checked, the violations, and what could not be checked.

    `complete`: the journal and the NodeManagers' evidence were available; YARN's log is optional.
    """

    checked: dict[str, int] = field(default_factory=dict)
    violations: list[dict[str, Any]] = field(default_factory=list)
    unchecked: list[dict[str, str]] = field(default_factory=list)
    complete: bool = True

    def wrong(self, kind: str, what: str, when: float) -> None:
        """Add a violation; `when` in Unix seconds."""
        self.violations.append({"kind": kind, "what": what, "when": when})

    def skip(self, check: str, why: str, *, essential: bool = True) -> None:
        """Record that a check was not made."""
        self.unchecked.append({"check": check, "why": why})
        self.complete = self.complete and not essential


def audit(
    history: History, evidence: Evidence, yarn: YarnRecords, now_s: float, gang_deadline_s: float, lead_s: float
) -> dict[str, Any]:
    """{"checked": counts, "violations": [{kind, what, when}], "unchecked": [{check, why}], "complete"}."""
    found = AuditFindings()
    found.checked = {"facts": history.facts, "evidence_files": len(evidence.files), "yarn_log_files": len(yarn.files)}
    if not history.facts:
        found.skip("leases", "the journal has no facts")
    for problem in history.problems:
        found.wrong(problem.kind, problem.what, problem.when)
    for line in evidence.bad_lines:
        found.wrong("evidence_unreadable", line, now_s)
    _complete(history, evidence, yarn)
    stays = sorted((s for s in evidence.stays.values() if s.gpu_ids), key=lambda s: s.start_s)
    found.checked["containers_with_gpus"] = len(stays)
    _lost_leases(history, yarn, now_s, found)
    _gangs(history, now_s, gang_deadline_s, found)
    _evidence_is_there(history, evidence, stays, found)
    _one_container_a_gpu(stays, found)
    leased = [s for s in stays if s.lease]  # CapacityScheduler placed the others
    found.checked["containers_of_capacity_scheduler"] = len(stays) - len(leased)
    _inside_leases(history, leased, found)
    _guarantees(history, evidence, leased, lead_s + REVOCATION_S, found)
    _granted_ids(history, evidence, found)
    _yarn_agrees(stays, yarn, found)
    found.violations.sort(key=lambda v: v["when"])
    return asdict(found)


def _complete(history: History, evidence: Evidence, yarn: YarnRecords) -> None:
    """Take ends that a killed NodeManager did not write from YARN's log, hosts it did not know from the journal."""
    for stay in evidence.stays.values():
        if stay.host == "0.0.0.0" and stay.container_id in history.started:
            stay.host = next(iter(history.started[stay.container_id])).host
            evidence.hosts.add(stay.host)
        if stay.end_s is None and stay.container_id in yarn.released_s:
            stay.end_s, stay.end_by = max(stay.start_s, yarn.released_s[stay.container_id]), "ResourceManager"


# ---- the journal


def _lost_leases(history: History, yarn: YarnRecords, now_s: float, found: AuditFindings) -> None:
    """Check that every lease has ended, or its app is alive."""
    leases = history.leases()
    found.checked["leases"] = len(leases)
    if not yarn.files:
        found.skip(
            "lease_lost", "no ResourceManager log: an app's end is known from the journal alone", essential=False
        )
    for span in leases:
        if span.ended_s is not None:
            continue
        ends = [e[span.app_id] for e in (history.ended_s, yarn.finished_s) if span.app_id in e]
        if ends and min(ends) + RELEASE_S < now_s:
            what = f"GPU {span.gpu}: leased to {span.app_id}, which ended, and the lease did not"
            found.wrong("lease_lost", what, min(ends))


def _gangs(history: History, now_s: float, deadline_s: float, found: AuditFindings) -> None:
    """Check that no job runs on a part of its gang for longer than the deadline; an elastic one runs on any number."""
    checked = 0
    unknown = set()
    for (app_id, job), changes in history.jobs.items():
        if app_id in history.elastic:
            continue
        sizes = history.gang_sizes.get(app_id)
        if not sizes:
            unknown.add(app_id)
            continue
        checked += 1
        split = _split_since(changes, sizes, deadline_s, now_s)
        if split is not None:
            wanted = " or ".join(str(n) for n in sorted(sizes))
            what = f"{app_id}: job {job} ran on {split.gpus} GPUs of a gang of {wanted} for over {deadline_s:g} s"
            found.wrong("gang_split", what, split.at_s)
    found.checked["gangs"] = checked
    if unknown:
        found.skip("gang_split", f"the journal has no award of {', '.join(sorted(unknown))}")


def _split_since(changes: list[GangSize], sizes: set[int], deadline_s: float, now_s: float) -> GangSize | None:
    """The first change after which only a part of a gang ran for too long; None if there is none."""
    since: GangSize | None = None
    for change in changes:
        if since is not None and change.at_s - since.at_s > deadline_s:
            return since
        whole = change.gpus == 0 or change.gpus in sizes
        since = None if whole else GangSize(since.at_s if since else change.at_s, change.gpus)
    return since if since is not None and now_s - since.at_s > deadline_s else None


# ---- the evidence


def _evidence_is_there(
    history: History, evidence: Evidence, stays: list[ContainerInterval], found: AuditFindings
) -> None:
    """Check that each container in the journal has a record in the evidence, on hosts with evidence."""
    if not evidence.files:
        for check in ("gpu_in_two_containers", "container_without_lease", "gpu_ids_differ"):
            found.skip(check, "no evidence file of a NodeManager was found")
        return
    known = {s.container_id for s in stays}
    silent = set()
    for container_id, gpus in history.started.items():
        host = next(iter(gpus)).host
        if container_id in known:
            continue
        if host in evidence.hosts:
            what = f"{container_id}: ran on {_named(gpus)} by the journal, {host} has no record of it"
            found.wrong("container_without_evidence", what, history.started_s[container_id])
        else:
            silent.add(host)
    for host in sorted(silent):
        found.skip("evidence", f"no evidence file of {host}, where the journal saw containers")


def _one_container_a_gpu(stays: list[ContainerInterval], found: AuditFindings) -> None:
    """Check that on each GPU a container ends before the next one begins."""
    by_gpu: dict[Gpu, list[ContainerInterval]] = defaultdict(list)
    for stay in stays:
        for index in stay.gpu_ids:
            by_gpu[Gpu(stay.host, index)].append(stay)
    found.checked["gpu_intervals"] = sum(len(s) for s in by_gpu.values())
    for gpu, users in by_gpu.items():
        longest = users[0]
        for before, after in pairwise(users):
            longest = max(longest, before, key=lambda x: math.inf if x.end_s is None else x.end_s)
            slack_s = CLOCK_S if longest.end_by == "ResourceManager" else 0.0
            if longest.end_s is None or longest.end_s > after.start_s + slack_s:
                what = f"GPU {gpu}: {after.container_id} began, {longest.container_id} {_end(longest, after.start_s)}"
                found.wrong("gpu_in_two_containers", what, after.start_s)


def _end(stay: ContainerInterval, from_s: float) -> str:
    return "has no recorded end" if stay.end_s is None else f"ended {stay.end_s - from_s:.3f} s later"


def _inside_leases(history: History, stays: list[ContainerInterval], found: AuditFindings) -> None:
    """Check that each container is within one lease of its app on each of its GPUs."""
    on_lost_nodes = 0
    for stay in stays:
        for index in stay.gpu_ids:
            gpu = Gpu(stay.host, index)
            span = _lease_at(history, gpu, stay)
            if span is None:
                what = f"{stay.container_id}: GPU {gpu} was not leased to {stay.app_id or 'its app'}"
                found.wrong("container_without_lease", what, stay.start_s)
            elif span.ended_s is not None and (
                stay.end_s is None or stay.end_s > span.ended_s + history.behind_s[span.number] + CLOCK_S
            ):
                if span.on_lost_node:  # unreachable; the GPU left the pool with its machine
                    on_lost_nodes += 1
                    continue
                what = (
                    f"{stay.container_id}: the lease of GPU {gpu} ended ({span.end_reason}),"
                    f" the container {_end(stay, span.ended_s)}"
                )
                found.wrong("container_without_lease", what, span.ended_s)
    found.checked["outlived_on_lost_nodes"] = on_lost_nodes


def _lease_at(history: History, gpu: Gpu, stay: ContainerInterval) -> LeaseInterval | None:
    """The app's lease of the GPU that the container's token names, if the journal saw it run there: clocks may differ.

    Else that in force when it began; of two within the clocks' tolerance, the later one.
    """
    mine = [span for span in history.spans.get(gpu, []) if span.app_id == stay.app_id]
    for span in mine:
        if span.lease.grant_id == stay.lease and (stay.container_id, span.number) in history.started_in:
            return span
    for span in reversed(mine):
        begun = span.granted_s - CLOCK_S <= stay.start_s
        if begun and (span.ended_s is None or stay.start_s <= span.ended_s + CLOCK_S):
            return span
    return None


def _guarantees(
    history: History, evidence: Evidence, stays: list[ContainerInterval], bound_s: float, found: AuditFindings
) -> None:
    """Check that no other app's container keeps a virtual cluster's own GPU for longer than one revocation."""
    claims = history.claims
    found.checked["guaranteed_gpus_claimed"] = len(claims.made)
    for x in claims.refused:
        if x.last_s - x.first_s > bound_s:
            what = (
                f"{x.app_id}: {x.rounds} rounds of {x.vc} awarded it GPUs of its own, and cells gave it none for"
                f" {x.last_s - x.first_s:.0f} s"
            )
            found.wrong("guarantee_late", what, x.first_s + bound_s)
    if not claims.made:
        return
    if not evidence.files:
        found.skip("guarantee_late", "no evidence file of a NodeManager was found")
        return
    on: dict[Gpu, list[tuple[str, str, float, float | None]]] = defaultdict(list)
    for stay in stays:
        for index in stay.gpu_ids:
            on[Gpu(stay.host, index)].append((stay.container_id, stay.app_id, stay.start_s, stay.end_s))
    for claim, container_id, over_s in strangers(claims, on, bound_s):
        what = (
            f"GPU {claim.gpu}: {claim.app_id} could claim it for {claim.vc}, and {container_id} had it for longer"
            f" than {bound_s:g} s after that"
        )
        found.wrong("guarantee_late", what, over_s)


def _granted_ids(history: History, evidence: Evidence, found: AuditFindings) -> None:
    """Check that CUDA_VISIBLE_DEVICES had the GPUs that the journal gave to the container."""
    compared = 0
    for container_id, gpus in history.started.items():
        stay = evidence.stays.get(container_id)
        if stay is None:
            continue
        compared += 1
        given = {Gpu(stay.host, i) for i in stay.gpu_ids}
        if given != gpus:
            what = f"{container_id}: granted {_named(gpus)}, its CUDA_VISIBLE_DEVICES named {_named(given)}"
            found.wrong("gpu_ids_differ", what, stay.start_s)
    found.checked["gpu_ids_compared"] = compared
    if evidence.files and not compared:
        found.skip("gpu_ids_differ", "no container is both in the journal and in the evidence")


def _yarn_agrees(stays: list[ContainerInterval], yarn: YarnRecords, found: AuditFindings) -> None:
    """Check that YARN allocated each container with the number of GPUs that it saw."""
    if not yarn.allocated or yarn.from_s is None:
        found.skip("unknown_to_yarn", "no allocation in a ResourceManager log was found", essential=False)
        return
    compared = 0
    for stay in stays:
        if stay.start_s < yarn.from_s:
            continue
        compared += 1
        if stay.container_id not in yarn.allocated:
            found.wrong("unknown_to_yarn", f"{stay.container_id}: YARN's log has no allocation of it", stay.start_s)
            continue
        gpus = yarn.allocated[stay.container_id]
        if gpus is not None and gpus != len(stay.gpu_ids):
            what = f"{stay.container_id}: YARN allocated {gpus} GPUs, it saw {len(stay.gpu_ids)}"
            found.wrong("gpu_count_differs", what, stay.start_s)
    found.checked["yarn_allocations_compared"] = compared


def _named(gpus: set[Gpu]) -> str:
    return ", ".join(str(g) for g in sorted(gpus)) or "none"
