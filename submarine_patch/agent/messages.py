"""Events and commands of the AgentCore, other than the protobuf messages of the Arbiter and the AM shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am

# ---- events


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The stream to the Arbiter broke."""


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """The AM shell could not carry a command out."""

    command: am.AmCommand
    error: str


@dataclass(frozen=True, slots=True)
class Published:
    """The winner's model was copied to `path`, or `problem` says why not; `missing`: it has no checkpoint."""

    path: str = ""
    problem: str = ""
    missing: bool = False


@dataclass(frozen=True, slots=True)
class HasToken:
    """The app has a new HDFS token; times in Unix seconds."""

    issued_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class HasBoard:
    """TensorBoard listens at this port of the Agent's machine, below a secret path, or does not run, and why."""

    port: int = 0
    below: str = ""
    problem: str = ""


Event = pb.ArbiterMessage | am.AmEvent | LinkLost | CommandRefused | Published | HasToken | HasBoard | None
"""None: no event arrived for a tick."""

# ---- commands


@dataclass(frozen=True, slots=True)
class Publish:
    """Copy the winner's newest checkpoint, if there is one, and the results of all jobs to the user's model folder."""

    job_id: str
    from_dir: str
    """Empty: no checkpoint, as the app has not succeeded."""
    to_dir: str
    results: Mapping[str, str] = field(default_factory=dict)
    """Result files by name."""


@dataclass(frozen=True, slots=True)
class KeepSpeeds:
    """Store the measured speeds of the job type for later apps."""

    file: str
    speeds: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NotifyWebhook:
    """Post an event to the app's webhook."""

    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """End the Agent with exit code `code`, 0 once the app has ended."""

    code: int = 0


Command = pb.AgentMessage | am.AmCommand | Publish | KeepSpeeds | NotifyWebhook | End
