"""Refreshes estimates of starts and ends in a separate process, limited to a quarter of a core."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import resource
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from pycontrol.arbiter.core import Arbiter
from pycontrol.queries.pictures import Picture
from pycontrol.simulation.calibration import Calibrations
from pycontrol.simulation.outlook import NoOutlook, outlooks
from pycontrol.simulation.scene import Scene, scene_of

REFRESH_S = 30.0
"""The least time from the end of one forecast to the next."""
PATIENCE_S = 900.0
"""A forecast that takes longer is aborted, together with its process."""
RUNS = 12
ERROR = 0.2
"""Assumed relative error of declared work."""
SHARE = 0.25
"""The share of a core that the process may use."""
MEMORY_MAX = 4 << 30
ENDED_TOLD = 500
"""The newest ended apps whose ends are learnt from."""
ASSUMED = "declared work is right to 20 %, apps come as in the last day, apps without an Agent go on for ever"
LEARNT = f"{ASSUMED}; ranges are as wide as past errors ask for"
log = structlog.get_logger("isonomy.forecast")


def pickled(message: tuple[Any, ...]) -> bytes:
    """The message as `Connection.recv` reads it.

    Other threads go on between frames of 64 kB: one call for all would hold the interpreter for 0.1 s at 10,000 GPUs.
    """
    frames: list[bytes] = []

    class Frames:
        def write(self, frame: bytes) -> None:
            frames.append(frame)

    pickle.Pickler(Frames(), pickle.HIGHEST_PROTOCOL).dump(message)
    return b"".join(frames)


def worker(pipe: Connection, work: Callable[..., Any]) -> None:
    """The main function of a helper's process: answers messages until the pipe closes."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    while True:
        try:
            pipe.send(work(*pipe.recv()))
        except (EOFError, OSError):  # the control plane is gone
            return


class Helper:
    """A process that answers messages by `work`, a function of a module; it starts with the first message."""

    def __init__(self, work: Callable[..., Any], name: str) -> None:
        self._work, self._name = work, name
        self._process: Any = None
        self._pipe: Connection | None = None

    def ask(self, message: tuple[Any, ...], patience_s: float, stop: threading.Event) -> Any:
        """The answer; TimeoutError if it does not come in time or at a stop, OSError or EOFError if the process ends.

        After an error the next message starts another process.
        """
        try:
            pipe = self._connection()
            pipe.send_bytes(pickled(message))
            until_s = time.monotonic() + patience_s
            while not pipe.poll(min(1.0, patience_s)):
                if stop.is_set() or time.monotonic() >= until_s:
                    raise TimeoutError
            return pipe.recv()
        except (OSError, EOFError):
            self.end()
            raise

    def _connection(self) -> Connection:
        if self._process is None or not self._process.is_alive() or self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=worker, args=(theirs, self._work), name=self._name, daemon=True)
            self._process.start()
            theirs.close()
        return self._pipe

    def end(self) -> None:
        """End the process."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None and process.is_alive():
            process.terminate()
            process.join(5.0)


def estimates_of(scene: Scene) -> dict[str, Any] | str:
    """Estimates by app, or the reason why there are none."""
    try:
        found = outlooks(scene, runs=RUNS, error=ERROR, pause=Rest().rest)
    except NoOutlook as e:
        return str(e)
    except Exception as e:  # a failed forecast must not end the process
        return f"the forecast failed: {e!r}"
    return {app_id: {"start_s": x.start_s, "end_s": x.end_s} for app_id, x in found.items()}


class Rest:
    """Sleeps so that this process has its SHARE of a core on average."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()

    def rest(self) -> None:
        """Sleep in proportion to the CPU time since the last call; call it often."""
        now_s = time.process_time()
        time.sleep((now_s - self._cpu_s) * (1 / SHARE - 1))
        self._cpu_s = now_s


class Forecaster:
    """Makes forecasts from the pictures that `newest` returns; any thread may read `latest`."""

    def __init__(self, newest: Callable[[], Picture], options: Mapping[str, Any], file: Path | None = None) -> None:
        """`options`: the policy's. `file` keeps what past errors taught."""
        self._newest, self._options, self._file = newest, dict(options), file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isonomy-forecast", daemon=True)
        self._helper = Helper(estimates_of, "isonomy-forecast")
        self.calibrations = Calibrations()
        """Adjust the ranges; their misses are kept in the file."""
        problem = "no forecast was made yet"
        self._latest: dict[str, Any] = {"made_s": None, "assumed": LEARNT, "problem": problem, "apps": {}}

    @property
    def latest(self) -> dict[str, Any]:
        """{made_s, assumed, problem, apps: {app: {start_s, end_s}}}; both times are 10, 50 and 90 % quantiles."""
        return self._latest

    def start(self) -> None:
        """Start the thread with what was learnt before; the process starts with the first forecast."""
        if self._file is not None and self._file.exists():
            try:
                self.calibrations.load(json.loads(self._file.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, AttributeError) as e:
                log.warning("what past estimates taught cannot be read: learnt anew", problem=str(e))
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and end the process."""
        self._stop.set()
        self._helper.end()

    def _run(self) -> None:
        while not self._stop.wait(REFRESH_S):
            try:
                seen = self._newest()
            except Exception as e:  # the Arbiter is busy or stopping: try again later
                log.debug("no picture", problem=repr(e))
                continue
            try:
                self._look(seen.arbiter, seen.now_s)
            except Exception as e:  # keep the thread alive: estimates are missing until the next picture
                log.exception("no forecast could be made")
                self._latest = _answer(seen.now_s, f"no forecast could be made: {e!r}")

    def _look(self, a: Arbiter, now_s: float) -> None:
        started_s: dict[str, float] = {}
        for x in a.durable.leases.each():
            if x.started_s is not None:
                started_s[x.app_id] = min(x.started_s, started_s.get(x.app_id, x.started_s))
        ended = itertools.islice(reversed(a.durable.ended.values()), ENDED_TOLD)
        scene = scene_of(a, now_s, self._options)
        away = [app_id for app_id in a.durable.live if app_id not in a.agents]
        if self.calibrations.looked(
            now_s, scene.started, away, started_s, {x.app_id: x.finished_s or now_s for x in ended}
        ):
            self._keep()
        self._latest = self._forecast(scene) if scene.started else _answer(now_s, {})

    def _keep(self) -> None:
        """Write what was learnt; a damaged or missing file costs only that."""
        if self._file is None:
            return
        part = self._file.with_name(self._file.name + ".part")
        try:
            part.write_text(json.dumps(self.calibrations.dump()), encoding="utf-8")
            part.replace(self._file)
        except OSError as e:
            log.warning("what past estimates taught cannot be kept", problem=str(e))

    def _forecast(self, scene: Scene) -> dict[str, Any]:
        try:
            return _answer(scene.now_s, self._widened(scene, self._helper.ask((scene,), PATIENCE_S, self._stop)))
        except (OSError, EOFError, TimeoutError) as e:
            why = "the forecast took too long" if isinstance(e, TimeoutError) else "the forecast's process ended"
            return _answer(scene.now_s, why)

    def _widened(self, scene: Scene, found: Any) -> Any:
        """The estimates, calibrated; a problem unchanged."""
        if isinstance(found, str):
            return found
        left_out = sorted(scene.started.keys() - found.keys())
        if left_out:
            log.warning("the forecast is without apps that take too long to simulate", apps=left_out[:10])
        runs = {app_id: (x["start_s"], x["end_s"]) for app_id, x in found.items()}
        said = self.calibrations.estimates(scene.policy, scene.now_s, scene.started, runs)
        return {app_id: {"start_s": start, "end_s": end} for app_id, (start, end) in said.items()}


def _answer(now_s: float, found: Any) -> dict[str, Any]:
    problem, apps = (found, {}) if isinstance(found, str) else ("", found)
    return {"made_s": now_s, "assumed": LEARNT, "problem": problem, "apps": apps}
