"""Translates between the messages of bridge.proto and the Arbiter's events and directives. Pure.

What has one name on both sides is copied. Numbers are within their bounds: the endpoint has clipped them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pycontrol.model import cluster
from pycontrol.model.cluster import Container, Mode, ModeSwitch, PartitionCapacity, YarnApp, attribute
from pycontrol.model.events import (
    AppAdded,
    AppRemoved,
    AppUpdated,
    AskChanged,
    AttemptAdded,
    AttemptRemoved,
    ClusterChanged,
    ClusterReady,
    ClusterSnapshot,
    ContainerGone,
    ContainerUp,
    Directive,
    DirectiveDone,
    Event,
    Kill,
    NodeDown,
    NodeUp,
    Place,
    Preempt,
)
from pycontrol.model.topology import Gpu
from pycontrol.wire.fields import filled, value_of
from pycontrol.wire.v1 import bridge_pb2 as pb

ENDED_STATES = frozenset({"COMPLETED", "EXPIRED", "RELEASED", "KILLED"})
"""States of YARN's RMContainer after which it holds no GPU."""
INDEX_DIGITS = 9
BAD_GPUS = "bad-gpus"
"""Node attribute: indices as in 1_3 (YARN allows no comma in a value), `none` or `all`."""
IDLE = "isonomy-idle"
"""Node attribute of the executor: GPUs with an idle container."""


class Unreadable(Exception):
    """A message of the plugin lacks a name; the error says which field."""


def host_of(node_id: str) -> str:
    """The host part of YARN's NodeId host:port."""
    host, colon, _ = node_id.rpartition(":")
    return host if colon else node_id


def _named(value: str, what: str) -> str:
    if not value:
        raise Unreadable(f"{what} is empty")
    return value


def node_of(message: pb.Node) -> cluster.Node:
    """A NodeManager; its host is the one in its NodeId, so that all names of a GPU agree."""
    node_id = _named(message.node_id, "node.node_id")
    bad, note = _bad_gpus(message.attributes, message.gpus)
    return value_of(
        cluster.Node,
        message,
        host=host_of(node_id),
        attributes=dict(message.attributes),
        bad_gpus=bad,
        note=note,
        idle_since_s=_idle_since_s(message.attributes, message.gpus),
    )


def _bad_gpus(attributes: Mapping[str, str], gpus: int) -> tuple[frozenset[int], str]:
    """(bad GPUs, note on malformed values) from the node attributes of the health script and the operator."""
    bad: set[int] = set()
    note = ""
    for value in attribute(attributes, BAD_GPUS):
        indices = value.split("_")
        if value == "all":
            bad.update(range(gpus))
        elif all(i.isascii() and i.isdigit() and len(i) <= INDEX_DIGITS for i in indices):
            bad.update(int(i) for i in indices)
        elif value not in ("", "none"):
            note = f"node attribute {BAD_GPUS}={value} cannot be read; write indices as in 1_3, all or none"
    return frozenset(i for i in bad if i < gpus), note


def _idle_since_s(attributes: Mapping[str, str], gpus: int) -> dict[int, float]:
    """GPU index -> since when it is idle, from the executor's attribute (`0-1763850000_3-1763850600`)."""
    entries = (e.partition("-") for value in attribute(attributes, IDLE) for e in value.split("_"))
    numbers = ((i, at) for i, _, at in entries if f"{i}{at}".isascii() and i.isdigit() and at.isdigit())
    return {int(i): float(at) for i, at in numbers if len(i) <= INDEX_DIGITS and len(at) <= 12 and int(i) < gpus}


def queue_of(message: pb.Queue) -> cluster.Queue:
    """A queue of the tree."""
    return value_of(
        cluster.Queue,
        message,
        path=_named(message.path, "queue.path"),
        capacity=message.absolute_capacity,
        max_capacity=message.absolute_max_capacity,
        leaf=not message.parent,
        user_limit=message.user_limit if message.HasField("user_limit") else 1.0,
        user_limit_factor=message.user_limit_factor if message.HasField("user_limit_factor") else -1.0,
        partitions={name: _partition_of(p) for name, p in message.partitions.items()},
    )


def _partition_of(message: pb.PartitionCapacity) -> PartitionCapacity:
    return PartitionCapacity(
        message.absolute_capacity,
        message.absolute_max_capacity,
        message.gpus if message.HasField("gpus") else None,
        message.max_gpus if message.HasField("max_gpus") else None,
    )


def app_of(message: pb.Application) -> YarnApp:
    """An application."""
    _named(message.app_id, "application.app_id")
    return value_of(YarnApp, message, submitted_s=message.submit_time_ms / 1000.0, tags=frozenset(message.tags))


def ask_of(message: pb.Ask) -> cluster.Ask:
    """An outstanding request for containers with GPUs."""
    _named(message.attempt_id, "ask.attempt_id")
    _named(message.app_id, "ask.app_id")
    label = message.node_label_expression if message.HasField("node_label_expression") else None
    return value_of(cluster.Ask, message, only_on=tuple(message.only_on), partition=label)


def container_of(message: pb.GpuContainer) -> Container:
    """A live container with the GPUs that its allocation tags name."""
    for name in ("node_id", "container_id", "app_id"):
        _named(getattr(message, name), f"container.{name}")
    host = host_of(message.node_id)
    return value_of(
        Container,
        message,
        gpus=tuple(Gpu(host, i) for i in sorted(set(message.gpu_ids))),
        gpu_count=message.gpus,
        plain=bool(message.gpu_ids) and not message.lease_id,
    )


def _switch_of(message: pb.Snapshot) -> ModeSwitch:
    """Older plugins name no mode."""
    told = message.mode
    named = told.name or ("shadow" if message.shadow else "on")
    try:
        mode = Mode(named)
    except ValueError as e:
        raise Unreadable(f"mode: must be one of {', '.join(Mode)} (got {named})") from e
    return ModeSwitch(mode, tuple(told.queues), told.by, told.at_ms / 1000.0 or None, told.problem)


def snapshot_of(message: pb.Snapshot) -> ClusterSnapshot:
    """A snapshot of YARN's state; without containers that have ended, unless their processes may still run."""
    return ClusterSnapshot(
        ready=message.ready,
        nodes=tuple(node_of(n) for n in message.nodes),
        apps=tuple(app_of(a) for a in message.applications),
        asks=tuple(ask_of(a) for a in message.asks),
        containers=tuple(container_of(c) for c in message.containers if c.ending or c.state not in ENDED_STATES),
        queues=tuple(queue_of(q) for q in message.queues),
        rm_life=message.rm_life,
        switch=_switch_of(message),
        down=tuple(value_of(NodeDown, n) for n in message.down),
    )


_NAMED: dict[str, tuple[Callable[..., Event], str]] = {
    "node_down": (NodeDown, "node_id"),
    "app_removed": (AppRemoved, "app_id"),
    "attempt_added": (AttemptAdded, "attempt_id"),
    "attempt_removed": (AttemptRemoved, "attempt_id"),
    "container_completed": (ContainerGone, "container_id"),
    "directive_result": (DirectiveDone, "directive_id"),
}
"""Kind of a message -> its event, which has the same fields, and the one that may not be empty."""


def event_of(message: pb.Event) -> Event | None:
    """The Arbiter's event; None for a kind that this version does not know. Raises Unreadable."""
    kind = message.WhichOneof("kind")
    if kind in _NAMED:
        (event, name), told = _NAMED[kind], getattr(message, kind)
        _named(getattr(told, name), f"{kind}.{name}")
        return value_of(event, told)
    match kind:
        case "node_up":
            return NodeUp(node_of(message.node_up))
        case "unasked":
            told = snapshot_of(message.unasked)
            return ClusterChanged(told.queues, told.down)
        case "app_added":
            return AppAdded(app_of(message.app_added))
        case "app_updated":
            return AppUpdated(app_of(message.app_updated))
        case "ask":
            return AskChanged(ask_of(message.ask))
        case "container_allocated":
            return ContainerUp(container_of(message.container_allocated))
        case "container_running":
            return ContainerUp(container_of(message.container_running), running=True)
        case "ready":
            return ClusterReady()
    return None


def directive_to_wire(directive: Directive) -> pb.Directive:
    """A directive as a protobuf message."""
    match directive:
        case Place():
            gpu_ids = sorted(g.index for g in directive.gpus)
            found = pb.Directive(place=filled(pb.Place, directive, directive.ask, gpu_ids=gpu_ids))
        case Preempt():
            deadline_ms = round(directive.deadline_s * 1000.0)
            found = pb.Directive(preempt=filled(pb.Preempt, directive, deadline_ms=deadline_ms))
        case Kill():
            found = pb.Directive(kill=filled(pb.Kill, directive))
    found.id = directive.directive_id
    return found
