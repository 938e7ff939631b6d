"""Nodes that come and go: the incrementally updated state equals a recomputation from all nodes."""

import random
import sys

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.cluster_view import Machines
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.model.topology import Gpu, Machine, Topology
from pycontrol.policies.registry import make
from tests.arbiter.mini import Mini

CONFIGURED = Topology.of([Machine("n0", "a", 4, "v100", True), Machine("n1", "a", 8), Machine("away", "z", 8)])


def node(rng: random.Random, host: str, port: int = 1) -> Node:
    gpus = rng.choice([0, 4, 8])
    bad = frozenset(i for i in range(gpus) if rng.random() < 0.2)
    return Node(f"{host}:{port}", host, "r", gpus, attributes={"gpu_type": "k80"}, bad_gpus=bad)


def expected(nodes: dict[str, Node]) -> dict[str, Machine]:
    found = {}
    for n in nodes.values():
        own = CONFIGURED.machines.get(n.host)
        gpus = len(n.good_gpus)
        machine = (
            Machine(n.host, "r", gpus, "k80")
            if own is None
            else Machine(n.host, own.rack, gpus, own.gpu_type, own.virtual)
        )
        if gpus:
            found[n.host] = machine
    return found


def test_any_order_of_node_events_gives_the_same_state() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        machines, nodes, seen = Machines(CONFIGURED), {}, set(CONFIGURED.machines)
        for _ in range(60):
            host = f"n{rng.randrange(6)}"
            if rng.random() < 0.05:
                nodes = {f"n{i}:1": node(rng, f"n{i}") for i in rng.sample(range(6), 3)}
                machines.reset(nodes.values())
            elif rng.random() < 0.6:
                nodes[f"{host}:1"] = node(rng, host)
                machines.put(nodes[f"{host}:1"])
            elif f"{host}:1" in nodes:
                machines.remove(nodes.pop(f"{host}:1"))
            wanted = expected(nodes)
            seen |= set(wanted)
            assert machines.topology == Topology(dict(sorted(wanted.items())))
            assert list(machines.topology.machines) == sorted(wanted)
            assert machines.gpus == sum(m.gpus for m in wanted.values())
            assert machines.node_at == {n.host: n for n in nodes.values()}
            assert machines.bad_gpus == sorted(Gpu(n.host, i) for n in nodes.values() for i in n.bad_gpus)
            assert {h: m.gpus for h, m in machines.known.machines.items()} == {
                h: wanted[h].gpus if h in wanted else 0 for h in seen
            }


def test_when_one_of_two_nodes_on_a_host_goes_the_other_stays() -> None:
    rng = random.Random(1)
    machines = Machines(None)
    old, new = Node("h:1", "h", "r", 4), Node("h:2", "h", "r", 8)
    machines.reset([old, new])
    assert machines.others(new) == [old]
    machines.remove(new)
    assert machines.node_at == {"h": old}
    assert machines.gpus == 4
    machines.remove(old)
    machines.remove(node(rng, "never"))
    assert machines.gpus == 0
    assert machines.on("h") == [Gpu("h", i) for i in range(8)], "leases of its GPUs may still be there"


def test_agents_do_not_get_a_message_for_each_of_many_new_nodes() -> None:
    a = Arbiter(Settings(recovery_s=0.0), make("isonomy"))
    app = YarnApp("a", "u", "root.q", "a", "SUBMARINE", attempt_id="a")
    a.handle(ev.ClusterSnapshot(True, (), (), (), ()), 0.0)
    a.handle(ev.AppAdded(app), 0.0)
    a.handle(ev.AgentUp("a", "a", "single", Demand(1, 1, 1, 1.0, 1.0)), 0.0)
    effects = [x for n in range(50) for x in a.handle(ev.NodeUp(Node(f"n{n}:1", f"n{n}", "r", 8)), 1.0 + n / 1000)]
    effects += a.handle(ev.Tick(), 2.0)
    assert len([e for e in effects if isinstance(e, ev.SendHosts)]) <= 2, "at once before a round, and for the rest"
    told = [type(e).__name__ for e in effects]
    assert "SendGrant" not in told or told.index("SendHosts") < told.index("SendGrant")


def test_the_cost_of_a_node_does_not_grow_with_the_cluster() -> None:
    """The cost is counted in calls of Python functions, which does not depend on the machine's load."""

    def calls(size: int) -> int:
        a = Arbiter(Settings(recovery_s=0.0), make("isonomy"))
        nodes = tuple(Node(f"n{n}:1", f"n{n}", f"r{n // 16}", 8) for n in range(size))
        a.handle(ev.ClusterSnapshot(True, nodes, (), (), ()), 0.0)
        count = 0

        def counted(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event == "call"

        a.handle(ev.NodeDown("n7:1", "lost"), 1.0)
        sys.setprofile(counted)
        a.handle(ev.NodeUp(nodes[7]), 1.0)
        a.handle(ev.NodeDown("n7:1", "lost"), 1.0)
        sys.setprofile(None)
        return count

    assert calls(400) <= calls(20) + 5


def test_machines_that_may_come_back_are_awaited_and_others_not() -> None:
    a = Arbiter(Settings(recovery_s=10.0), make("isonomy"), topology=CONFIGURED)
    nodes = tuple(Node(f"{host}:1", host, "r", 4) for host in ("n0", "lost", "gone", "moved"))
    a.handle(ev.ClusterSnapshot(True, nodes, (), (), ()), 0.0)
    a.handle(ev.NodeDown("gone:1", "DECOMMISSIONED"), 1.0)
    assert "gone" in a.cluster.machines.known.machines, "leases may be there until the recovery time is over"
    a.handle(ev.Tick(), 11.0)
    for host, reason in (("n0", "SHUTDOWN"), ("lost", "LOST"), ("moved", "LOST")):
        a.handle(ev.NodeDown(f"{host}:1", reason), 12.0)
    a.handle(ev.NodeUp(Node("moved:2", "moved", "r", 4)), 13.0)
    a.handle(ev.NodeDown("moved:1", "SHUTDOWN"), 14.0)
    assert a.cluster.down == {"n0": ("n0:1", "SHUTDOWN"), "lost": ("lost:1", "LOST")}
    assert a.cluster.machines.known.machines.keys() == {*CONFIGURED.machines, "lost", "moved"}
    told = (ev.NodeDown("lost:1", "LOST"), ev.NodeDown("n0:1", "SHUTDOWN"), ev.NodeDown("gone:1", "DECOMMISSIONED"))
    a.handle(ev.ClusterSnapshot(True, nodes[3:], (), (), (), down=told), 15.0)
    assert a.cluster.down == {"n0": ("n0:1", "SHUTDOWN"), "lost": ("lost:1", "LOST")}, "as before the snapshot"
    a.handle(ev.Tick(), 26.0)
    a.handle(ev.ClusterChanged((), (ev.NodeDown("lost:1", "DECOMMISSIONED"), *told[1:])), 27.0)
    assert a.cluster.down == {"n0": ("n0:1", "SHUTDOWN")}, "it was down, and is taken out now"
    assert a.cluster.machines.known.machines.keys() == {*CONFIGURED.machines, "moved"}
    a.handle(ev.ClusterSnapshot(True, nodes[:1], (), (), ()), 30.0)
    a.handle(ev.Tick(), 41.0)
    assert a.cluster.machines.known.machines.keys() == CONFIGURED.machines.keys()
    a.handle(ev.NodeUp(nodes[2]), 42.0)
    assert a.cluster.machines.known.machines["gone"].gpus == 4


def test_a_node_that_is_told_with_those_that_are_gone_loses_its_leases_by_its_own_event() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    m.start_app("a", 4)
    host = next(iter(m.held("a"))).host
    m.send(ev.ClusterChanged((), (ev.NodeDown(f"{host}:1", "LOST"),)))  # computed before, or told after, the node came
    assert host in m.a.cluster.node_at
    m.send(ev.NodeDown(f"{host}:1", "LOST"))
    assert host not in {gpu.host for gpu in m.held("a")}
