"""Checks the messages relayed between an app's Agent and its workers: bounded, and without unknown fields."""

from __future__ import annotations

from pycontrol.rpc.checks import (
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
    relayed = pb.WorkerMessage(worker_id=an_id(message.worker_id, "worker_id"))
    match message.WhichOneof("kind"):
        case "ready":
            ready = message.ready
            relayed.ready.CopyFrom(
                pb.WorkerReady(
                    host=an_id(ready.host, "ready.host", required=False)[:HOST_MAX_CHARS],
                    port=a_count(ready.port, "ready.port"),
                    cuda_visible_devices=ready.cuda_visible_devices[:ID_MAX_CHARS],
                    container_id=an_id(ready.container_id, "ready.container_id", required=False),
                )
            )
        case "progress":
            said = message.progress
            relayed.progress.CopyFrom(
                pb.WorkerProgress(
                    step=a_step(said.step),
                    loss=said.loss,
                    accuracy=said.accuracy,
                    iter_time_s=said.iter_time_s,
                    paced=said.paced,
                    time_s=said.time_s,
                    until_step=a_step(max(0, said.until_step)),
                    metric=said.metric if said.HasField("metric") else None,
                )
            )
        case "checkpoint":
            saved = message.checkpoint
            path, problem = saved.path[:TEXT_MAX_CHARS], saved.problem[:TEXT_MAX_CHARS]
            relayed.checkpoint.CopyFrom(pb.WorkerCheckpoint(step=a_step(saved.step), path=path, problem=problem))
        case "exit":
            relayed.exit.CopyFrom(message.exit)
            relayed.exit.DiscardUnknownFields()
            relayed.exit.message, relayed.exit.step = message.exit.message[:TEXT_MAX_CHARS], a_step(message.exit.step)
        case "heartbeat":
            relayed.heartbeat.CopyFrom(pb.Heartbeat(time_s=message.heartbeat.time_s))
        case _:  # a kind of a later version
            pass
    return relayed


def worker_command(command: pb.WorkerCommand) -> pb.WorkerCommand:
    """An Agent's command for one of its workers. Raises Malformed."""
    an_id(command.worker_id, "to_worker.worker_id")
    small_enough(command, "to_worker")
    if command.WhichOneof("kind") is None:
        raise Malformed(f"to_worker of {command.worker_id} is of no known kind")
    command.DiscardUnknownFields()
    return command
