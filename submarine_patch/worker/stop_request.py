"""Detects a request to stop (SIGTERM) even while the main thread waits inside a framework.

Python runs signal handlers in the main thread, between bytecodes, so not while that thread is in a collective
operation or waits for other workers. The wakeup descriptor is written immediately whatever the main thread does, and a
separate thread reads it.
"""

from __future__ import annotations

import os
import signal
import threading

from submarine_patch.worker import EXIT_STOPPED


class StopRequest:
    """Handles SIGTERM: before `arm` it ends the process immediately, as nothing needs saving; then it sets a flag."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._armed = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """Start to handle SIGTERM; from the main thread only."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.take_over()
        threading.Thread(target=self._watch, args=(read_end,), name="stop-request", daemon=True).start()

    @staticmethod
    def take_over() -> None:
        """Replace any other SIGTERM handler, such as MultiWorkerMirroredStrategy's."""
        signal.signal(signal.SIGTERM, lambda *_: None)

    def arm(self) -> None:
        """From now on SIGTERM only sets the flag, because there is state to save."""
        with self._lock:
            self._armed = True

    def disarm(self) -> None:
        """The state is saved, and another script may follow: SIGTERM ends the process again, also one that came."""
        with self._lock:
            if self._asked.is_set():
                os._exit(EXIT_STOPPED)
            self._armed = False

    @property
    def asked(self) -> bool:
        """Whether the process was asked to stop."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a stop for at most `timeout_s`; returns whether it was requested."""
        return self._asked.wait(timeout_s)

    def _watch(self, read_end: int) -> None:
        while data := os.read(read_end, 64):
            if signal.SIGTERM in data:
                with self._lock:
                    if not self._armed:
                        os._exit(EXIT_STOPPED)
                self._asked.set()
