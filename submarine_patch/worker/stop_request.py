"""Detects a request to stop (SIGTERM) even while the main thread waits inside a framework.

Python runs signal handlers in the main thread, between bytecodes, so not while that thread is in a collective
operation or waits for other workers. The wakeup descriptor is written immediately whatever the main thread does, and a
separate thread reads it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from submarine_patch.worker import EXIT_STOPPED

ARMED = "isonomy-armed"
"""Name of a thread by which the supervisor knows who answers a stop for its whole family (child.py)."""


class StopRequest:
    """Handles SIGTERM: before `arm` it ends the process immediately, as nothing needs saving; then it sets a flag."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._armed = False
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._wakeup = -1

    def _install(self) -> None:
        read_end, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, args=(read_end,), name="stop-request", daemon=True)
        self._watcher.start()
        # a signal to a forked process waits until it no longer goes by this one's descriptor
        os.register_at_fork(
            before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
            after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM}),
            after_in_child=self._uninstall,
        )

    def _uninstall(self) -> None:
        """A forked process (of a data loader, of a pool) has nothing to save, and its signals are not its parent's."""
        self.__init__()  # type: ignore[misc]
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._wake:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def take_over(self) -> None:
        """Handle SIGTERM, in the main thread, in place of others such as MultiWorkerMirroredStrategy's."""
        if self._watcher is None:
            self._install()
        signal.signal(signal.SIGTERM, self._wake)

    def arm(self) -> None:
        """From now on SIGTERM only sets the flag, because there is state to save."""
        if self._watcher is None and threading.current_thread() is threading.main_thread():
            self.take_over()  # forked from the process that made the session
        with self._lock:
            self._armed = True
        self._call_watcher(ARMED)

    def disarm(self) -> None:
        """The state is saved, and another script may follow: SIGTERM ends the process again, also one that came."""
        with self._lock:
            if self._asked.is_set():
                os._exit(EXIT_STOPPED)
            self._armed = False
        self._call_watcher("stop-request")

    def _call_watcher(self, name: str) -> None:
        if self._watcher is None:
            return
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{self._watcher.native_id}/comm").write_text(name)

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

    def _wake(self, *_: object) -> None:
        """Python's own handler, without which no byte comes to the descriptor, nor once an event loop has its own."""
        with contextlib.suppress(OSError):
            os.write(self._wakeup, bytes([signal.SIGTERM]))
