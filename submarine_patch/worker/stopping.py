"""A request to stop (SIGTERM) that is noticed even while the main thread waits inside TensorFlow.

Python runs signal handlers in the main thread, between bytecodes: never while it sits in a collective
operation or waits for the other workers to appear. The wakeup descriptor is written at once, whatever the main
thread does, and a thread of its own reads it.
"""

from __future__ import annotations

import os
import signal
import threading

from submarine_patch.worker import EXIT_STOPPED


class StopRequest:
    """Until arm() a SIGTERM ends the process at once: it has nothing to save. Afterwards it sets a flag."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._armed = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """Takes over SIGTERM; from the main thread only."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.take_over()
        threading.Thread(target=self._watch, args=(read_end,), name="stop-request", daemon=True).start()

    @staticmethod
    def take_over() -> None:
        """Takes SIGTERM (back) from whoever has it: MultiWorkerMirroredStrategy sets a handler of its own."""
        signal.signal(signal.SIGTERM, lambda *_: None)

    def arm(self) -> None:
        """From now on there is something to save."""
        with self._lock:
            self._armed = True

    @property
    def asked(self) -> bool:
        """Whether the process was asked to stop."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits at most so long; True as soon as a stop is asked for."""
        return self._asked.wait(timeout_s)

    def _watch(self, read_end: int) -> None:
        while data := os.read(read_end, 64):
            if signal.SIGTERM in data:
                with self._lock:
                    if not self._armed:
                        os._exit(EXIT_STOPPED)
                self._asked.set()
