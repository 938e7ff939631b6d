"""An Agent's bid: 100 jobs, 256 offered GPUs (the paper's Agents: 29 ms median, 334 ms at the 95th percentile).

Twice: the pure builder that the simulator's Agents share, and the whole answer of a real Agent, from the Offer as it
came to the Bid as it goes, with its app scheduler, its profiler and 12 gangs that run.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from pycontrol.fairness.bidding import Bidder, OwnGang
from pycontrol.fairness.gang_rho import AppWork, PhaseWork
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent.agent_core import AgentCore
from tests.agent.world import hyperband, machines

PAPER_MS = {"median_ms": 29.0, "p95_ms": 334.0}
JOBS, MACHINES, GPUS = 100, 64, 4
HOSTS = [f"m{k:03}" for k in range(MACHINES)]
RUNNING = 12


def builder_s(seed: int) -> float:
    """Seconds of one bid of an app in mid-run, without cached work."""
    rng = random.Random(seed)
    topology = Topology.of(Machine(host, f"r{k % 8}", GPUS) for k, host in enumerate(HOSTS))
    gang, held = rng.choice([1, 2, 4]), rng.randrange(RUNNING)
    now = PhaseWork(tuple(rng.uniform(200.0, 20_000.0) for _ in range(JOBS)))
    later = tuple(PhaseWork((5000.0,) * (JOBS >> k)) for k in range(1, 6))
    own = [OwnGang(((HOSTS[k], gang),), 1.0) for k in range(held)]
    slowdowns = dict(zip(Scope, (1.0, 1.1, 1.3), strict=True))
    offered = dict.fromkeys(topology.machines, GPUS)
    begin_s = time.perf_counter()
    app = AppWork((now, *later), gang, 3600.0, 9000.0)
    Bidder(app, [1.0] * rng.randrange(5), own, offered, JOBS, slowdowns, topology, 40.0, 600.0).bid("app")
    return time.perf_counter() - begin_s


def agent_s(seed: int) -> float:
    """Seconds from an Offer to the Bid of a real Agent's mind, some gangs of it on offer."""
    rng = random.Random(seed)
    gang = rng.choice([1, 2, 4])
    core = _agent(gang, rng)
    ending = [Gpu(HOSTS[k], i) for k in range(rng.randrange(RUNNING)) for i in range(gang)]
    contention = pb.Contention(cluster_gpus=MACHINES * GPUS, n_avg=20.0, now_s=5000.0, submitted_s=0.0, lease_s=600.0)
    ask = pb.ArbiterMessage(ask_rho=pb.AskRho(round_id="r", contention=contention, ending=machines(ending)))
    core.handle(ask, 5000.0)
    offered = [pb.MachineGpus(host=host, gpus=GPUS) for host in HOSTS]
    offer = pb.Offer(round_id="r", contention=contention, machines=offered, ending=machines(ending))
    message = pb.ArbiterMessage(offer=offer).SerializeToString()
    begin_s = time.perf_counter()
    commands = core.handle(pb.ArbiterMessage.FromString(message), 5000.0)
    sent = [c.SerializeToString() for c in commands if isinstance(c, pb.AgentMessage) and c.HasField("bid")]
    took_s = time.perf_counter() - begin_s
    assert len(sent) == 1
    return took_s


def _agent(gang: int, rng: random.Random) -> AgentCore:
    """An app of 100 jobs, 12 of them running and measured."""
    core = AgentCore(hyperband(jobs=JOBS, eta=2, max_iterations=6400, min_iterations=100, gang_gpus=gang))
    held = [Gpu(HOSTS[k], i) for k in range(RUNNING) for i in range(gang)]
    hosts = [pb.Host(host=host, rack=f"r{k % 8}", gpus=GPUS) for k, host in enumerate(HOSTS)]
    grant = pb.Grant(grant_id="g", gpus=machines(held), end_s=9000.0)
    core.handle(pb.ArbiterMessage(registered=pb.Registered(hosts=hosts, grants=[grant])), 4000.0)
    for job in [j for j in core.jobs.values() if j.active]:
        job.state, job.use_accepted = "running", True
    for job_id in core.scheduler.runnable():
        core.job(job_id).step = rng.randrange(90)
        for _ in range(8):
            core.profiler.add(job_id, rng.uniform(0.1, 20.0), gang, Scope.MACHINE)
    return core


def run(quick: bool = False) -> dict[str, Any]:
    """Median and 95th percentile over fresh apps."""
    n = 30 if quick else 200
    return {
        "bid, 100 jobs, 256 GPUs": _times(builder_s, n),
        "Offer to Bid in an Agent, 100 jobs, 256 GPUs": _times(agent_s, n),
        "paper (another machine)": PAPER_MS,
    }


def _times(one: Callable[[int], float], n: int) -> dict[str, float]:
    times_ms = sorted(1e3 * one(seed) for seed in range(n))
    return {"median_ms": statistics.median(times_ms), "p95_ms": times_ms[int(0.95 * n)], "n": n}
