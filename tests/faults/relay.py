"""Messages relayed between an Agent and its workers arrive, even if the reader was away meanwhile.

Nobody says again what the relay had taken: a worker tells of its start and of its end once to each stream, an Agent
commands once. What waited for a stream that then broke may be lost with it.
"""

from __future__ import annotations

from typing import Any

from pycontrol.wire.v1 import agent_pb2 as pb
from tests.faults.clock import Violation

ARRIVES_S = 4.0
"""By when a reader must have all that waited, where its stream stands and neither side is slow or suspended."""
TOLD = ("ready", "exit")


class Relay:
    """Tracks messages that arrive while their reader is away."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self._due: dict[tuple[str, str, str], tuple[Any, Any, bytes, int]] = {}
        """(app, worker, kind) -> the control plane, its life, the message, how many streams its reader had begun."""
        self._since: dict[tuple[str, str, str], float] = {}
        """Since when the reader could have had it."""

    def arrived(self, plane: Any, kind: str, app_id: str, message: Any) -> None:
        """Notes a message that the control plane has read: what a stream held that broke before may be lost."""
        sessions, sort = plane.agents.service.sessions, message.WhichOneof("kind")
        if kind == "worker" and sort in TOLD and app_id not in sessions.agents:
            worker_id, reader, what = message.worker_id, self.world.masters.get(app_id), message
        elif kind == "agent" and sort == "to_worker":
            worker_id, what, sort = message.to_worker.worker_id, message.to_worker, "command"
            if worker_id in sessions.workers.get(app_id, {}):
                self._due.pop((app_id, worker_id, sort), None)
                return
            reader = self._worker(app_id, worker_id)
        else:
            return
        if reader is not None:
            said = what.SerializeToString(deterministic=True)
            self._due[app_id, worker_id, sort] = plane, plane.life, said, reader.links

    def _worker(self, app_id: str, worker_id: str) -> Any:
        here = (w for w in self.world.workers.values() if w.app_id == app_id and w.worker_id == worker_id)
        return next(here, None)

    def heard(self, app_id: str, worker_id: str, message: Any) -> None:
        """Notes a message that reached its reader."""
        sort = message.WhichOneof("kind") if isinstance(message, pb.WorkerMessage) else "command"
        due = self._due.get((app_id, worker_id, sort))
        if due is not None and due[2] == message.SerializeToString(deterministic=True):
            del self._due[app_id, worker_id, sort]

    def look(self, now_s: float) -> None:
        """Checks the deadlines once a second."""
        for key, (plane, life, _, links) in list(self._due.items()):
            app_id, worker_id, sort = key
            reader = self._worker(app_id, worker_id) if sort == "command" else self.world.masters.get(app_id)
            if life.dead or reader is None or reader.life.dead or reader.links > links + 1:
                del self._due[key]
            elif reader.links == links + 1 and reader.peer != plane.name:
                del self._due[key]  # another control plane serves it: a worker tells that one all again
            elif self._could_s(key, reader, plane, links, now_s) > ARRIVES_S:
                raise Violation(
                    "relay", f"{sort} of {worker_id} of {app_id} waited for a reader and never came", app_id
                )
        self._since = {key: since_s for key, since_s in self._since.items() if key in self._due}

    def _could_s(self, key: tuple[str, str, str], reader: Any, plane: Any, links: int, now_s: float) -> float:
        """Seconds for which its reader could have had it: its new stream stands, nobody is slow or suspended."""
        stands = reader.links == links + 1 and reader.linked_s is not None
        if (
            not stands
            or now_s < getattr(reader, "mute_until_s", 0.0)
            or not self.world.net.quick(reader.name, plane.name)
        ):
            self._since.pop(key, None)
            return 0.0
        return now_s - self._since.setdefault(key, now_s)
