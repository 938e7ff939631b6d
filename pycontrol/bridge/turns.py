"""Users' turns: a user's queries are answered one at a time, and take a part of a core in the long run."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

SHARE = 0.1
"""The part of a core that one user's queries may take: they share the interpreter with the Arbiter."""
AT_ONCE_S = 2.0
"""CPU seconds that a user who asked nothing before may take at once: some views of a cluster of 65,536 GPUs."""
PATIENCE_S = 25.0
"""How long a query may wait for its turn; the plugin waits 30 s for an answer (Bridge.QUERY_MS)."""
USERS_MAX = 4096


class Turns:
    """Delays the queries of users who take too much; from any thread."""

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._changed = threading.Condition()
        self._busy: set[str] = set()
        self._paid_s: OrderedDict[str, float] = OrderedDict()
        """By user: when its CPU time is paid for, of time.monotonic; the most recent last."""

    @contextmanager
    def of(self, user: str, waits: bool) -> Iterator[None]:
        """Context manager for a query, which begins when it is the user's turn; others may be answered beside one that
        `waits` for something to happen. Raises TimeoutError where that would last too long."""
        end_s = time.monotonic() + PATIENCE_S
        with self._changed:
            free = waits or self._changed.wait_for(lambda: user not in self._busy, PATIENCE_S)
            paid_s = self._paid_s.get(user, 0.0)
            if not free or paid_s > end_s:
                raise TimeoutError("busy with earlier queries of yours; try again")
            if not waits:
                self._busy.add(user)
        self._stopped.wait(max(0.0, paid_s - time.monotonic()))
        begin_s = time.thread_time()
        try:
            yield
        finally:
            used_s, least_s = time.thread_time() - begin_s, time.monotonic() - AT_ONCE_S / SHARE
            with self._changed:
                self._paid_s[user] = max(self._paid_s.pop(user, 0.0), least_s) + used_s / SHARE
                if len(self._paid_s) > USERS_MAX:
                    self._paid_s.popitem(last=False)
                if not waits:
                    self._busy.discard(user)
                    self._changed.notify_all()
