"""What is kept for an app while its reader is away: for its Agent from its workers, and for workers from its Agent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from pycontrol.rpc.budget import ByteBudget
from pycontrol.rpc.outbox import Sized
from pycontrol.wire.v1 import agent_pb2 as pb

KEPT_KINDS = ("ready", "progress", "checkpoint", "exit")
"""Kinds of workers' messages of which the newest is kept, in the order in which an Agent gets them."""
KEPT_MAX = 2048
"""Messages (and commands) kept per app while their reader is away."""

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Sized)


class Shelf(Generic[K, M]):
    """The newest message of each key, oldest key first; its bytes count in the ledger, and the oldest give way."""

    def __init__(self, app_id: str, ledger: ByteBudget, at_most: int) -> None:
        self._app_id, self._ledger, self._at_most = app_id, ledger, at_most
        self._kept: OrderedDict[K, tuple[M, int]] = OrderedDict()

    def put(self, key: K, message: M) -> None:
        """Keeps it in place of the key's older one; drops it where even alone it is too much."""
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
        """Takes one out."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._ledger.give(self._app_id, found[1])
        return found[0]

    def clear(self) -> None:
        """Drops all."""
        while self._kept:
            self._drop_oldest()

    def items(self) -> Iterator[tuple[K, M]]:
        """All, oldest first."""
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
    """Of one app."""

    def __init__(self, app_id: str, ledger: ByteBudget, workers_max: int) -> None:
        self._latest = {kind: Shelf[str, pb.ArbiterMessage](app_id, ledger, workers_max) for kind in KEPT_KINDS}
        """By kind and worker the last message of those whose streams are open: an Agent that registers gets them all,
        as it may be new, or may have missed some when its stream broke."""
        self._open: dict[str, None] = {}
        """Workers of `_latest`, oldest first."""
        self.unread: Shelf[tuple[str, str], pb.ArbiterMessage] = Shelf(app_id, ledger, KEPT_MAX)
        """By worker and kind: what no Agent has got."""
        self.commands: Shelf[str, pb.WorkerCommand] = Shelf(app_id, ledger, KEPT_MAX)
        """The last command for each worker that is not connected."""

    def heard(self, worker_id: str, kind: str, message: pb.ArbiterMessage) -> None:
        """A worker whose stream is open said so last."""
        self._open[worker_id] = None
        self._latest[kind].put(worker_id, message)

    def closed(self, worker_id: str) -> None:
        """The worker's stream is no more."""
        self._open.pop(worker_id, None)
        for shelf in self._latest.values():
            shelf.pop(worker_id)

    def keep(self, worker_id: str, kind: str, message: pb.ArbiterMessage, newer: bool = True) -> None:
        """Keeps a message for the Agent; of each worker and kind the newest."""
        key = (worker_id, kind)
        if newer or key not in self.unread:
            self.unread.put(key, message)

    def take(self) -> list[pb.ArbiterMessage]:
        """What an Agent that registers needs to know of its workers."""
        ended = [m for (worker_id, _), m in self.unread.items() if worker_id not in self._open]
        self.unread.clear()
        latest = [dict(shelf.items()) for shelf in self._latest.values()]
        return ended + [kept[w] for w in self._open for kept in latest if w in kept]

    def command(self, command: pb.WorkerCommand) -> None:
        """Keeps a command for a worker that is not connected."""
        self.commands.put(command.worker_id, command)

    def clear(self) -> None:
        """Drops everything."""
        for shelf in self._latest.values():
            shelf.clear()
        self.unread.clear()
        self.commands.clear()
        self._open.clear()
