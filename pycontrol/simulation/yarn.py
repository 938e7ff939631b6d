"""YARN in virtual time: machines, asks and containers. Whatever breaks a promise of the Arbiter raises."""

from __future__ import annotations

from collections.abc import Callable

from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, Queue
from pycontrol.model.topology import Gpu, Topology


class Conflict(Exception):
    """A GPU was to be in two containers."""


class SimYarn:
    """Carries directives out at once and tells the Arbiter as the plugin does."""

    def __init__(self, topology: Topology, queues: tuple[Queue, ...], post: Callable[[ev.Event], None]) -> None:
        self.post = post
        nodes = (Node(f"{m.host}:1", m.host, m.rack, m.gpus, partition=m.partition) for m in topology.machines.values())
        self.nodes = {node.node_id: node for node in nodes}
        self.up = dict(self.nodes)
        self.queues = queues
        self.asks: dict[int, Ask] = {}
        """By allocation request id, which is unique here."""
        self.containers: dict[str, Container] = {}
        self.occupied: dict[Gpu, str] = {}
        self.launched, self.prefix = 0, "c"
        """Containers launched; what their ids begin with."""

    def snapshot(self) -> ev.ClusterSnapshot:
        """The cluster when the simulation begins."""
        return ev.ClusterSnapshot(True, tuple(self.up.values()), (), (), (), self.queues)

    def ask(self, ask: Ask) -> None:
        """An ask for one container."""
        self.asks[ask.allocation_request_id] = ask
        self.post(ev.AskChanged(ask))

    def withdraw(self, request_id: int) -> None:
        """The ask is void."""
        ask = self.asks.pop(request_id, None)
        if ask is not None:
            self.post(ev.AskChanged(_none(ask)))

    def place(self, e: ev.Place) -> Container | None:
        """The container of an ask; None where the ask or the machine is gone."""
        ask = self.asks.pop(e.ask.allocation_request_id, None)
        if ask is None or e.node_id not in self.up:
            self.post(ev.DirectiveDone(e.directive_id, False, "", "the ask or its node is gone"))
            return None
        for gpu in e.gpus:
            if gpu in self.occupied:
                raise Conflict(f"{gpu} is in {self.occupied[gpu]} and was to be in a container of {ask.app_id}")
        self.launched += 1
        container_id = f"{self.prefix}{self.launched}"
        for gpu in e.gpus:
            self.occupied[gpu] = container_id
        request_id = ask.allocation_request_id
        container = Container(container_id, ask.app_id, e.node_id, e.gpus, e.lease_id, request_id, ask.attempt_id)
        self.containers[container_id] = container
        self.post(ev.AskChanged(_none(ask)))
        self.post(ev.DirectiveDone(e.directive_id, True, container_id))
        self.post(ev.ContainerUp(container, True))
        return container

    def end(self, container_id: str) -> None:
        """The container has ended."""
        container = self.containers.pop(container_id, None)
        if container is not None:
            for gpu in container.gpus:
                del self.occupied[gpu]
            self.post(ev.ContainerGone(container_id))

    def lose(self, node_id: str) -> list[str]:
        """A machine is lost; its containers, which are over with it."""
        if self.up.pop(node_id, None) is None:
            return []
        gone = [c.container_id for c in self.containers.values() if c.node_id == node_id]
        self.post(ev.NodeDown(node_id, "lost"))
        for container_id in gone:
            self.end(container_id)
        return gone

    def restore(self, node_id: str) -> None:
        """A machine is back, empty."""
        if node_id not in self.up:
            self.up[node_id] = self.nodes[node_id]
            self.post(ev.NodeUp(self.nodes[node_id]))


def _none(ask: Ask) -> Ask:
    return Ask(ask.attempt_id, ask.app_id, ask.allocation_request_id, ask.gpus, 0, ask.priority)
