"""Checks the messages relayed between an app's Agent and its workers: bounded, and without unknown fields."""

from __future__ import annotations

from pycontrol.rpc.message_checks import (
    ID_MAX_CHARS,
    TEXT_MAX_CHARS,
    Malformed,
    a_count,
    a_step,
    an_id,
    small_enough,
)
from pycontrol.wire.v1 import agent_pb2 as pb

HOST_MAX_CHARS = 253


def worker_message(message: pb.WorkerMessage) -> pb.WorkerMessage:
    """A worker's message, its texts cut and its steps bounded. Raises Malformed."""
    relayed = pb.WorkerMessage()
    relayed.CopyFrom(message)
    relayed.DiscardUnknownFields()
    an_id(relayed.worker_id, "worker_id")
    match relayed.WhichOneof("kind"):
        case "ready":
            ready = relayed.ready
            ready.host = an_id(ready.host, "ready.host", required=False)[:HOST_MAX_CHARS]
            a_count(ready.port, "ready.port")
            ready.cuda_visible_devices = ready.cuda_visible_devices[:ID_MAX_CHARS]
            an_id(ready.container_id, "ready.container_id", required=False)
        case "progress":
            progress = relayed.progress
            progress.step, progress.until_step = a_step(progress.step), a_step(max(0, progress.until_step))
        case "checkpoint":
            saved = relayed.checkpoint
            saved.step = a_step(saved.step)
            saved.path, saved.problem = saved.path[:TEXT_MAX_CHARS], saved.problem[:TEXT_MAX_CHARS]
        case "exit":
            relayed.exit.message, relayed.exit.step = relayed.exit.message[:TEXT_MAX_CHARS], a_step(relayed.exit.step)
    return relayed


def worker_command(command: pb.WorkerCommand) -> pb.WorkerCommand:
    """An Agent's command for one of its workers. Raises Malformed."""
    an_id(command.worker_id, "to_worker.worker_id")
    small_enough(command, "to_worker")
    if command.WhichOneof("kind") is None:
        raise Malformed(f"to_worker of {command.worker_id} is of no known kind")
    command.DiscardUnknownFields()
    return command
