"""HiveD's Figure 2 with the Arbiter: a tenant with idle GPUs under a quota, and with cells."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.lab.hived import simulated
from pycontrol.lab.kit import Claim, Findings, Setup, Table
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.trace_apps import TraceApp, Workload

POLICY = "yarn_cs"
SWITCHES = {"1a": "1", "1b": "1", "2a": "2", "2b": "2"}
"""{switch: node}. The Arbiter places by machine and rack, which stand for switch and node here."""
SWITCH_GPUS, NODE_GPUS = 2, 4
LONG_S, SHORT_S = 50_000.0, 2_000.0
A5_S, B1_S = 4_000.0, 8_000.0
"""Arrivals of a5 and b1, after a2 and a4 have ended."""
REVOCATION_S = 70.0
"""The lead, plus the time until a round begins."""


def jobs() -> Workload:
    """The jobs: a1 to a4 take one GPU each in turn; a2 and a4 end. a5 needs a switch, b1 a node."""

    def job(name: str, at_s: float, gpus: int, run_s: float, scope: Scope) -> TraceApp:
        queue = name[0]
        return TraceApp(name, at_s, gpus, ((gpus * run_s,),), queue, queue, slowdown=(1.0, 1.0, 1.0), scope=scope)

    singles = [job(f"a{k}", 60.0 * k, 1, SHORT_S if k in (2, 4) else LONG_S, Scope.MACHINE) for k in range(1, 5)]
    return Workload(
        "figure 2",
        (
            *singles,
            job("a5", A5_S, SWITCH_GPUS, LONG_S, Scope.MACHINE),
            job("b1", B1_S, NODE_GPUS, SHORT_S, Scope.RACK),
        ),
    )


@dataclass
class ShownJob:
    """The switches and nodes of a job's GPUs at one time; empty: it waits."""

    nodes: set[str] = field(default_factory=set)
    switches: set[str] = field(default_factory=set)
    guaranteed: bool = False

    def __str__(self) -> str:
        if not self.nodes:
            return "waits"
        return f"runs on node {' and '.join(sorted(self.nodes))}"


def run(cells: bool) -> tuple[dict[str, ShownJob], dict[str, ShownJob]]:
    """The jobs' placements just before b1 arrives, and one revocation later."""
    topology = Topology.of([Machine(switch, node, SWITCH_GPUS) for switch, node in SWITCHES.items()])
    policy = simulated.policy_of(POLICY)
    if cells:
        file = CellsFile.model_validate(
            {
                "levels": {"switch": SWITCH_GPUS, "node": NODE_GPUS // SWITCH_GPUS},
                "node": "switch",
                "hosts": list(SWITCHES),
                "virtual_clusters": {"a": {"node": 1}, "b": {"node": 1}},
            }
        )
        supply = CellSupply(layout(file))
        sim = Simulator(jobs(), topology, ByVirtualCluster(policy), simulated.settings(), supply=supply)
    else:
        queues = (Queue("a", 0.5, 1.0), Queue("b", 0.5, 1.0))
        sim = Simulator(jobs(), topology, policy, simulated.settings(), queues=queues)
    found: list[dict[str, ShownJob]] = []
    for at_s in (B1_S - 1.0, B1_S + REVOCATION_S):
        sim.at(at_s, lambda _, stamp: found.append(_seen(sim)), None)
    sim.run()
    before, after = found
    return before, after


def _seen(sim: Simulator) -> dict[str, ShownJob]:
    found = {app.app_id: ShownJob() for app in sim.workload.apps}
    for gpu, lease in sim.arbiter.durable.leases.items():
        one = found[lease.app_id]
        one.nodes.add(SWITCHES[gpu.host])
        one.switches.add(gpu.host)
        one.guaranteed = lease.guaranteed
    return found


def fig2(setup: Setup) -> Findings:
    """HiveD Figure 2: two tenants on two 4-GPU nodes; by quota one fragments the other's node."""
    (quota_before, quota), (before, after) = run(False), run(True)
    lent = bool(before["a5"].nodes) and not before["a5"].guaranteed
    claims = (
        Claim(
            "a1 and a3 are left on both switches of one node.",
            "as in the figure",
            ", ".join(f"{name} on {'/'.join(sorted(before[name].switches))}" for name in ("a1", "a3")),
            all(
                seen["a1"].nodes == seen["a3"].nodes and seen["a1"].switches != seen["a3"].switches
                for seen in (before, quota_before)
            ),
        ),
        Claim(
            "By quota, b1 (4 GPUs) finds no node although B uses nothing.",
            "waits",
            str(quota["b1"]),
            not quota["b1"].nodes,
        ),
        Claim(
            "With cells, b1 gets B's node within one revocation.", "runs", str(after["b1"]), len(after["b1"].nodes) == 1
        ),
        Claim(
            "With cells, a5 (2 GPUs) waits or runs on B's node only until B needs it, as A's own node has no free"
            " switch.",
            "as in A's private cluster",
            f"{'borrowed, ' if lent else ''}{before['a5']} before b1, {after['a5']} after",
            not after["a5"].nodes,
        ),
    )
    rows = tuple(
        (job, str(quota_before[job]), str(quota[job]), str(before[job]), str(after[job]))
        for job in ("a1", "a3", "a5", "b1")
    )
    columns = ("job", "quota, before b1", "with b1", "HiveD, before b1", "with b1")
    how = (
        "the Arbiter with the policy yarn_cs, in the simulator",
        "switches are its machines, and nodes its racks: without cells it knows no level below the machine",
        "a5 wants both GPUs on one switch, as in the paper",
    )
    return Findings(claims, (Table("After a2 and a4 have ended", columns, rows),), (), how)
