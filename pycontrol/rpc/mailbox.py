"""Messages kept for an app while their reader is away: from workers to the Agent, and from the Agent to workers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from pycontrol.rpc.byte_budget import ByteBudget
from pycontrol.rpc.outbox import Sized
from pycontrol.wire.v1 import agent_pb2 as pb

KEPT_KINDS = ("ready", "progress", "checkpoint", "exit")
"""Kinds of workers' messages; the newest of each is kept, and an Agent gets them in this order."""
KEPT_MAX = 2048
"""Messages (and commands) kept per app while their reader is away."""

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Sized)


class Shelf(Generic[K, M]):
    """The newest message of each key, oldest key first; bytes count in the ledger, and the oldest are dropped."""

    def __init__(self, app_id: str, ledger: ByteBudget, at_most: int) -> None:
        self._app_id, self._ledger, self._at_most = app_id, ledger, at_most
        self._kept: OrderedDict[K, tuple[M, int]] = OrderedDict()

    def put(self, key: K, message: M) -> None:
        """Keep a message in place of the key's older one; drop it if it exceeds the limit even alone."""
        self.pop(key)
        size = message.ByteSize()
        while self._ledger.take(self._app_id, size):
            if not self._kept:
                return
            self._drop_oldest()
        self._kept[key] = (message, size)
        if len(self._kept) > self._at_most:
            self._drop_oldest()

    def pop(self, key: K) -> M | None:
        """Remove and return a key's message; None if there is none."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._ledger.give(self._app_id, found[1])
        return found[0]

    def clear(self) -> None:
        """Drop all messages."""
        while self._kept:
            self._drop_oldest()

    def items(self) -> Iterator[tuple[K, M]]:
        """All (key, message), oldest first."""
        return ((key, message) for key, (message, _) in self._kept.items())

    def _drop_oldest(self) -> None:
        self._ledger.give(self._app_id, self._kept.popitem(last=False)[1][1])

    def __contains__(self, key: K) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Mailbox:
    """The messages kept for one app."""

    def __init__(self, app_id: str, ledger: ByteBudget, workers_max: int) -> None:
        self._latest = {kind: Shelf[str, pb.ArbiterMessage](app_id, ledger, workers_max) for kind in KEPT_KINDS}
        """By kind and worker the last message of those whose streams are open: an Agent that registers gets them all,
        as it may be new, or may have missed some when its stream broke."""
        self._open: dict[str, None] = {}
        """Workers of `_latest`, oldest first."""
        self.unread: Shelf[tuple[str, str], pb.ArbiterMessage] = Shelf(app_id, ledger, KEPT_MAX)
        """By (worker, kind): messages that no Agent has received."""
        self.commands: Shelf[str, pb.WorkerCommand] = Shelf(app_id, ledger, KEPT_MAX)
        """The last command for each worker that is not connected."""

    def heard(self, worker_id: str, kind: str, message: pb.ArbiterMessage) -> None:
        """Keep the newest message of a worker with an open stream."""
        self._open[worker_id] = None
        self._latest[kind].put(worker_id, message)

    def closed(self, worker_id: str) -> None:
        """Forget the newest messages of a worker whose stream has ended."""
        self._open.pop(worker_id, None)
        for shelf in self._latest.values():
            shelf.pop(worker_id)

    def keep(self, worker_id: str, kind: str, message: pb.ArbiterMessage, newer: bool = True) -> None:
        """Keep an undelivered message for the Agent, the newest per worker and kind."""
        key = (worker_id, kind)
        if newer or key not in self.unread:
            self.unread.put(key, message)

    def take(self) -> list[pb.ArbiterMessage]:
        """Remove and return the messages about its workers for an Agent that registers."""
        ended = [m for (worker_id, _), m in self.unread.items() if worker_id not in self._open]
        self.unread.clear()
        latest = [dict(shelf.items()) for shelf in self._latest.values()]
        return ended + [kept[w] for w in self._open for kept in latest if w in kept]

    def command(self, command: pb.WorkerCommand) -> None:
        """Keep a command for a worker that is not connected."""
        self.commands.put(command.worker_id, command)

    def clear(self) -> None:
        """Drop everything."""
        for shelf in self._latest.values():
            shelf.clear()
        self.unread.clear()
        self.commands.clear()
        self._open.clear()
