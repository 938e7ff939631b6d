"""What the Agent's mind takes and gives, beside the protobuf messages of the Arbiter and the AM shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am

# ---- events


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time passes."""


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
    """The winner's model is at `path`; or not, and why. `missing`: the job has written no checkpoint."""

    path: str = ""
    problem: str = ""
    missing: bool = False


@dataclass(frozen=True, slots=True)
class HasToken:
    """The app has a new HDFS token; Unix seconds."""

    issued_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class HasBoard:
    """TensorBoard listens at this port of the Agent's machine, or does not run, and why."""

    port: int = 0
    problem: str = ""


Event = pb.ArbiterMessage | am.AmEvent | TimePassed | LinkLost | CommandRefused | Published | HasToken | HasBoard

# ---- commands


@dataclass(frozen=True, slots=True)
class ToArbiter:
    """A message for the Arbiter."""

    message: pb.AgentMessage


@dataclass(frozen=True, slots=True)
class ToShell:
    """A command for the AM shell."""

    command: am.AmCommand


@dataclass(frozen=True, slots=True)
class Publish:
    """Copy the newest checkpoint of the winner, and what came of all jobs, to where the user wants the model."""

    job_id: str
    from_dir: str
    to_dir: str
    results: Mapping[str, str] = field(default_factory=dict)
    """Files that go beside it, by name."""


@dataclass(frozen=True, slots=True)
class KeepSpeeds:
    """Keep what is known of the job type's speeds for later apps."""

    file: str
    speeds: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NotifyWebhook:
    """Tell the app's webhook."""

    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """Nothing is left to do; `code` is the Agent's exit code, 0 once the app has ended."""

    code: int = 0


Command = ToArbiter | ToShell | Publish | KeepSpeeds | NotifyWebhook | End
