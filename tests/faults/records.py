"""A ResourceManager's records of applications, containers and nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycontrol.wire.v1 import bridge_pb2 as pb
from tests.faults.nodes import NodeManager
from tests.faults.plugin import Key

MALLORY = "mallory was here"
"""What she says in others' names."""


@dataclass
class App:
    """The state store's record of an application."""

    app_id: str
    user: str
    queue: str
    name: str
    kind: str
    tags: tuple[str, ...]
    submitted_s: float
    keeps: bool
    """Whether its containers outlive its attempts."""
    attempt: int = 0
    running: bool = False
    """Whether an attempt runs."""
    final: str = ""

    @property
    def attempt_id(self) -> str:
        """The id of the newest attempt."""
        return f"{self.app_id.replace('application', 'appattempt')}_{self.attempt:06d}"


@dataclass
class RmContainer:
    """RMContainerImpl."""

    container_id: str
    app_id: str
    attempt_id: str
    node_id: str
    gpus: tuple[int, ...]
    lease_id: str
    key: Key
    memory_mb: int
    state: str = "ALLOCATED"
    since_s: float = 0.0

    def message(self) -> pb.GpuContainer:
        """As ClusterView.java has it."""
        return pb.GpuContainer(
            container_id=self.container_id,
            attempt_id=self.attempt_id,
            app_id=self.app_id,
            node_id=self.node_id,
            gpu_ids=self.gpus,
            lease_id=self.lease_id,
            allocation_request_id=self.key[1],
            state=self.state,
            gpus=len(self.gpus),
        )


@dataclass
class RmNode:
    """RMNodeImpl."""

    nm: NodeManager
    gpus: int
    last_heard_s: float
    state: str = "RUNNING"
    orders: list[str] = field(default_factory=list)


@dataclass
class Told:
    """The news for an AM, delivered with its heartbeat."""

    allocated: list[RmContainer] = field(default_factory=list)
    completed: list[tuple[str, int, str]] = field(default_factory=list)
    previous: list[RmContainer] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    """Ends that its last heartbeat brought: the next one says that they arrived."""


class Refused(Exception):
    """The refusal of a directive."""
