"""The app's work left, and its bids as messages; `pycontrol.fairness.bidding` computes the bids."""

from __future__ import annotations

import itertools

from pycontrol.fairness.gang_rho import PhaseWork
from pycontrol.model.auction import Bid
from pycontrol.model.topology import Scope
from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent.schedulers.base import Scheduler
from submarine_patch.agent.schedulers.port import Profile

ALIKE_MAX = 1500
"""The most groups of jobs alike by which a phase's work left is told."""
SCOPES = {Scope.MACHINE: pb.MACHINE, Scope.RACK: pb.RACK, Scope.CLUSTER: pb.CLUSTER}


def unknown_left_gpu_s(declared_gpu_s: float, least_gpu_s: float, done_gpu_s: float) -> float:
    """The work left of a job whose end only its script knows: what is left of the declared work; without any, or
    beyond it, the work done so far, but at least `least_gpu_s`."""
    left_gpu_s = declared_gpu_s - done_gpu_s
    return left_gpu_s if left_gpu_s > 0 else max(done_gpu_s, least_gpu_s)


def work_left(
    scheduler: Scheduler, profile: Profile, declared_gpu_s: float, least_gpu_s: float, done_gpu_s: float
) -> tuple[PhaseWork, ...]:
    """The phases left, in serial GPU-seconds per job; one of `unknown_left_gpu_s` if only its script knows its end."""
    if scheduler.finished:
        return ()
    if not scheduler.until_step(scheduler.runnable()[0]):
        return (PhaseWork((unknown_left_gpu_s(declared_gpu_s, least_gpu_s, done_gpu_s),)),)
    phases = range(scheduler.num_phases())
    return tuple(PhaseWork(tuple(j.serial_s for j in scheduler.jobs_in_phase(p, profile))) for p in phases)


def phase_left(phase: PhaseWork) -> pb.PhaseLeft:
    """The work left of a phase's jobs; of more than ALIKE_MAX groups of jobs alike, the last are averaged."""
    groups = [(serial_s, len(list(same))) for serial_s, same in itertools.groupby(phase.job_serial_s)]
    if len(groups) > ALIKE_MAX:
        groups, rest = groups[: ALIKE_MAX - 1], groups[ALIKE_MAX - 1 :]
        jobs = sum(n for _, n in rest)
        groups.append((sum(serial_s * n for serial_s, n in rest) / jobs, jobs))
    return pb.PhaseLeft(jobs=[pb.JobsLeft(serial_s=serial_s, jobs=n) for serial_s, n in groups])


def message(bid: Bid, round_id: str) -> pb.Bid:
    """A bid as a protobuf message."""
    rows = [
        pb.BidRow(
            rho=row.rho,
            keep=[pb.Gang(machines=[pb.MachineGpus(host=h, gpus=n) for h, n in gang]) for gang in row.keep],
            new_gangs=row.new_gangs,
            gang_gpus=row.gang_gpus,
            scope=SCOPES[row.scope],
            gpu_type=row.gpu_type,
            mixes=row.mixes,
        )
        for row in bid.rows
    ]
    return pb.Bid(round_id=round_id, rho_nothing=bid.rho_nothing, rows=rows, restart_s=bid.restart_s)
