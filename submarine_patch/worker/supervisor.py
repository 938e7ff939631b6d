"""Supervises one worker: registers, waits for the gang, runs the user's program, reports, and stops it on request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.deadline import on_this_clock
from submarine_patch.worker import EXIT_NO_START, EXIT_REFUSED, EXIT_SETTINGS, EXIT_STOPPED, ports, say, servers
from submarine_patch.worker.again import script_of
from submarine_patch.worker.checkpoints import StoreError, patiently
from submarine_patch.worker.child import DRAIN_S, Child
from submarine_patch.worker.kept import KeptFolder, kept_folder
from submarine_patch.worker.link import Link
from submarine_patch.worker.logparse import CheckpointLine, LogParser, Progress
from submarine_patch.worker.worker_settings import SettingsError, WorkerSettings, read_settings

START_S = 600.0
"""How long a worker waits for its Start; the Agent gives up on a gang earlier than that."""
PROGRESS_S = 0.5
"""The least time between two WorkerProgress messages."""
REPORT_S = 10.0
"""How long a worker that has ended tries to report its exit."""
GRACE_S = 30.0
"""Time for a stop without a deadline, such as YARN's SIGTERM, which YARN's SIGKILL may follow sooner."""
MARGIN_S = 1.0
"""SIGKILL is sent this long before the deadline, or after three quarters of the time if that is later."""
KEEP_S = 60.0
"""How often to save a kept folder, besides at the program's end."""
KEEP_AGAIN_S = 5.0
LASTING = {errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOSPC}
LASTING |= {errno.ENOTDIR, errno.EPERM, errno.EROFS}
"""Errors of folders of this machine that no retry mends; a store's connection, or its network drive, may come back."""
KEEP_PATIENCE_S = 120.0
"""How long to try to save the kept folder of a program that has ended, if no stop leaves less."""
KEEP_SHARE = 0.5
"""Share of the time for a stop that the program gets if its folder must be saved afterwards."""
AGAIN_S = 60.0
"""How long a program waits for another launch; the Agent decides within a second."""
_TAIL_LINES = 5
_INTO_TEE = re.compile(r"(?:[^|]|\|\|)+(?:\|&?\s*tee\b(?:[^|]|\|\|)*)+")
"""A command line whose pipes all lead into tee, which would hide that the program failed."""


class Supervisor:
    """Runs one worker on one event loop."""

    def __init__(
        self, settings: WorkerSettings, command: Sequence[str], env: Mapping[str, str], program: Child | None = None
    ) -> None:
        """`program`: waits for this launch."""
        self._settings, self._command, self._env = settings, command, env
        self._program = program
        """The program, while it waits for a launch."""
        self._next: asyncio.Future[pb.Next] = asyncio.get_running_loop().create_future()
        self._finished = asyncio.Event()
        self._parser = LogParser(env.get("ISONOMY_METRIC", ""), int(env.get("ISONOMY_EPOCHS", 0)))
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._start: asyncio.Future[pb.Start] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._kill_at_s = math.inf
        self._killed = False
        self._serves = False
        """Whether its programs only serve the coordinator of another container, so that a stop must be its last act."""
        self._fallen = ""
        """The failure of a program beside the first one."""
        self._trained = False
        """Whether the program has reported a step."""
        self._stopped_s = math.inf
        """Monotonic time of the first request to stop."""
        self._saved_s = -math.inf
        """Monotonic time at which the last complete checkpoint was seen."""
        self._keeping = asyncio.Lock()
        self._progress_due = asyncio.Event()
        self._link = Link(settings.arbiter, settings.token, settings.ca_pem, settings.worker_id, self._on_command)

    async def run(self) -> int | Supervisor:
        """Run the worker to its end; returns the container's exit code, or who goes on with its program."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        link = asyncio.ensure_future(self._link.run())
        try:
            with contextlib.closing(ports.reserve(int(self._env.get(servers.PORTS) or 1))) as port:
                self._link.put(pb.WorkerMessage(ready=self._ready(port.number)))
                code, message = await self._until_end(port)
            step = self._parser.last.step if self._parser.last else 0
            stopped = self._stop.is_set() and code == EXIT_STOPPED
            unsaved = stopped and self._trained and self._saved_s < self._stopped_s
            if code not in (0, EXIT_STOPPED):
                say(f"failed with {code}")  # by which `isonomy logs` finds it
            waits = self._program is not None and code == 0
            ended = pb.WorkerExit(code=code, message=message, step=step, unsaved=unsaved, waits=waits)
            self._link.put(pb.WorkerMessage(exit=ended))
            following = await self._following() if waits else None
            if self._program is not None:
                await self._program.end()
            if code != EXIT_REFUSED and not await self._link.finish(REPORT_S):
                say(f"the Arbiter at {self._settings.arbiter} did not receive exit code {code}")
            return following or (EXIT_NO_START if waits else code)
        finally:
            link.cancel()
            await asyncio.gather(link, return_exceptions=True)

    async def _following(self) -> Supervisor | None:
        """Who goes on with the waiting program; None if it ends, or nobody came within AGAIN_S."""
        assert self._program is not None
        await self._unless_stopped({self._next, self._program.exit}, AGAIN_S)
        if not self._next.done() or self._stop.is_set() or self._program.exit.done():
            return None
        told, program, self._program = self._next.result(), self._program, None
        env = {**self._env, "ISONOMY_WORKER_ID": told.worker_id, "ISONOMY_JOB_ID": told.job_id}
        say(f"goes on as {told.worker_id}")  # by which `isonomy logs` finds it
        settings = replace(self._settings, worker_id=told.worker_id)
        return Supervisor(settings, command_line([told.command]), env, program)

    async def _until_end(self, port: ports.ReservedPort) -> tuple[int, str]:
        await self._unless_stopped({self._start, self._link.refused}, START_S)
        if self._stop.is_set():
            return EXIT_STOPPED, f"stopped before its start: {self._stop_reason}"
        if self._link.refused.done():
            return _failed(EXIT_REFUSED, f"the Arbiter refused this worker: {self._link.refused.result()}")
        if not self._start.done():
            return _failed(EXIT_NO_START, f"no Start arrived within {START_S:g} s (is the rest of its gang missing?)")
        port.hand_over()
        bringing = asyncio.ensure_future(self._bring(self._start.result()))
        await self._unless_stopped({bringing})
        if self._stop.is_set():
            bringing.cancel()
            return EXIT_STOPPED, f"stopped before its start: {self._stop_reason}"
        try:
            kept = bringing.result()
        except OSError as e:
            return _failed(1, f"the kept folder cannot be restored: {e}")
        return await self._train(self._start.result(), port.number, kept)

    async def _unless_stopped(self, waits: set[asyncio.Future[Any]], timeout_s: float | None = None) -> None:
        """Wait for one of these, for a stop, or until the time is over."""
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({*waits, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    async def _train(self, start: pb.Start, port: int, kept: KeptFolder | None) -> tuple[int, str]:
        (task, argv, env), *beside = programs(self._command, self._env, start, port)
        self._serves = servers.PORTS in self._env and task[0] != servers.CHIEF
        script = script_of(argv[-1]) if start.again and not kept and not beside else []
        child, self._program = self._program, None
        try:
            if child is None:
                child = await Child.start(argv, env, self._on_line, script)
            elif script and not child.exit.done():
                child.again(script, env, self._on_line)
            else:
                return _failed(EXIT_NO_START, "the program that it should go on with has ended")
            helpers = {name: await Child.start(argv, env, self._on_side_line) for name, argv, env in beside}
        except OSError as e:
            return _failed(127, f"{self._command[0]} cannot be started: {e.strerror}")
        helping = asyncio.gather(*(self._fall_with(child, *task, helper) for task, helper in helpers.items()))
        others = [asyncio.ensure_future(self._carry_out_stop(child)), asyncio.ensure_future(self._report())]
        if kept is not None and _rank(start) == 0:
            others.append(asyncio.ensure_future(self._keep_now_and_then(kept)))
        try:
            code = 0 if await self._again(child) else await child.wait()
        except asyncio.CancelledError:
            child.kill()
            raise
        finally:
            for helper in helpers.values():
                if not helper.exit.done():
                    helper.kill()
            await helping
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        if self._progress_due.is_set():
            self._send_progress()
        done, lost = self._verdict(code)[0] == 0, ""  # now: a stop during the last copy does not undo it
        if kept is not None and _rank(start) == 0:
            left_s = self._kill_at_s - self._stopped_s if self._stop.is_set() else KEEP_PATIENCE_S
            lost = await self._keep(kept, left_s)
        return (int(lost != ""), lost) if done else self._verdict(code)

    async def _again(self, child: Child) -> bool:
        """Wait until the program has finished and waits for another launch; False if it ends instead."""
        if not await child.waits():
            return False
        with contextlib.suppress(TimeoutError):  # its last lines may still be in the pipe
            await asyncio.wait_for(self._finished.wait(), DRAIN_S)
        self._program = child
        return True

    def _verdict(self, code: int) -> tuple[int, str]:
        """(exit code, message); a program that a stop killed counts as stopped, though without a checkpoint."""
        if code == EXIT_STOPPED:
            return code, f"stopped: {self._stop_reason or 'by itself'}"
        if self._fallen and not self._stop.is_set():
            return 1, f"{self._fallen}; last output: {' | '.join(self._tail)[-1000:]}"
        if self._killed:
            return EXIT_STOPPED, f"killed at the deadline of its stop ({self._stop_reason})"
        if self._stop.is_set() and (code != 0 or not self._done()):
            return EXIT_STOPPED, self._stopped_how(code)
        if code == 0:
            return 0, ""
        tail = " | ".join(self._tail)[-1000:]
        if code < 0:
            return 128 - code, f"ended by signal {-code}; last output: {tail}"
        return code, f"exit code {code}; last output: {tail}"

    # ---- a folder of the program's own

    async def _bring(self, start: pb.Start) -> KeptFolder | None:
        """Restore the kept folder, if there is one; retries until the store answers. Raises OSError that would last."""
        kept = kept_folder(self._env, start.checkpoint_dir)
        while kept is not None:
            try:
                files = await asyncio.to_thread(kept.bring)
                say(f"brought {files} files of {self._env['ISONOMY_KEEP_FOLDER']}")
                break
            except (StoreError, OSError) as e:
                if isinstance(e, OSError) and e.errno in LASTING:
                    raise
                say(f"{e}; trying on")
                await asyncio.sleep(KEEP_AGAIN_S)
        return kept

    async def _keep(self, kept: KeptFolder, for_s: float = 0.0) -> str:
        """Save the kept folder, and retry for so long; returns the problem."""
        folder, problem = self._env["ISONOMY_KEEP_FOLDER"], ""
        async with self._keeping:
            step = self._parser.last.step if self._parser.last else 0
            try:
                if await asyncio.to_thread(patiently, kept.keep, for_s, say):
                    self._checkpointed(CheckpointLine(step, folder))
            except (StoreError, OSError) as e:
                problem = f"{folder} could not be kept: {e}"
                say(problem)
                self._checkpointed(CheckpointLine(step, folder, problem))
        return problem

    async def _keep_now_and_then(self, kept: KeptFolder) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await asyncio.shield(self._keep(kept))  # one that has begun may have what a stopped program saved

    def _done(self) -> bool:
        """Whether a program that ended with 0 after a request to stop had really finished.

        Many programs save and end with 0 on SIGTERM. If only the program knows its last step, it is started again, and
        ends immediately if nothing is left to do.
        """
        last, until = self._parser.last, self._start.result().until_step
        return self._parser.finished or (last is not None and 0 < until <= last.step)

    def _stopped_how(self, code: int) -> str:
        if self._saved_s > self._stopped_s:
            return f"stopped with a checkpoint, by exit code {code} ({self._stop_reason})"
        how = "SIGTERM" if code in (-signal.SIGTERM, 128 + signal.SIGTERM) else f"exit code {code}"
        return f"ended by {how} without a checkpoint ({self._stop_reason})"

    # ---- commands

    def _on_command(self, command: pb.WorkerCommand) -> None:
        if command.HasField("start") and not self._start.done():
            self._start.set_result(command.start)
        elif command.HasField("next") and not self._next.done():
            self._next.set_result(command.next)
        elif command.HasField("stop"):
            stop, now_s = command.stop, time.time()
            left_s = on_this_clock(stop, now_s) - now_s if stop.deadline_s > 0 else GRACE_S
            self._request_stop(left_s, stop.reason)

    def _request_stop(self, left_s: float, reason: str) -> None:
        """Request a stop within `left_s` seconds; of several requests the earliest deadline counts."""
        kill_in_s = max(0.0, left_s - min(MARGIN_S, left_s / 4.0))
        kill_in_s *= KEEP_SHARE if self._env.get("ISONOMY_KEEP_FOLDER") else 1.0
        self._kill_at_s = min(self._kill_at_s, time.monotonic() + kill_in_s)
        if not self._stop.is_set():
            self._stop_reason, self._stopped_s = reason, time.monotonic()
        self._stop.set()

    def _on_signal(self, number: signal.Signals) -> None:
        """YARN ends this container; there is nothing to save where the programs only serve."""
        self._request_stop(0.0 if self._serves else GRACE_S, f"got {number.name}")

    async def _carry_out_stop(self, child: Child) -> None:
        await self._stop.wait()
        if self._serves:
            say(f"serving until the coordinator has stopped ({self._stop_reason})")
        else:
            say(f"stopping the program ({self._stop_reason})")
        while (left_s := self._kill_at_s - time.monotonic()) > 0:
            if not self._serves:
                child.stop()
            await asyncio.sleep(min(left_s, 0.25))
        self._killed = True
        say("ending the programs" if self._serves else "the program did not end in time; killing it")
        child.kill()

    async def _fall_with(self, child: Child, kind: str, index: int, helper: Child) -> None:
        """Wait for a program beside the first one; if it fails, kill the first, which may wait for it forever."""
        code = await helper.wait()
        if code and not child.exit.done():
            self._fallen = f"the {kind} {index} beside it ended with {code}"
            child.kill()

    # ---- progress

    def _on_side_line(self, line: str) -> None:
        self._tail.append(line.strip()[:300])

    def _on_line(self, line: str) -> None:
        self._tail.append(line.strip()[:300])
        seen = self._parser.feed(line, time.monotonic())
        if self._parser.finished:
            self._finished.set()
        if isinstance(seen, Progress):
            self._trained = True
            self._progress_due.set()
        elif isinstance(seen, CheckpointLine):
            self._checkpointed(seen)

    def _checkpointed(self, seen: CheckpointLine) -> None:
        if not seen.problem:
            self._saved_s = time.monotonic()
        saved = pb.WorkerCheckpoint(step=seen.step, path=seen.path, problem=seen.problem)
        self._link.put(pb.WorkerMessage(checkpoint=saved))

    async def _report(self) -> None:
        while True:
            await self._progress_due.wait()
            self._send_progress()
            await asyncio.sleep(PROGRESS_S)

    def _send_progress(self) -> None:
        self._progress_due.clear()
        last = self._parser.last
        if last is None:
            return
        progress = pb.WorkerProgress(
            step=last.step,
            loss=last.loss or 0.0,
            accuracy=last.accuracy or 0.0,
            iter_time_s=last.iter_time_s or 0.0,
            paced=last.paced,
            time_s=time.time(),
            until_step=last.until_step,
            metric={"accuracy": last.accuracy, "loss": last.loss}.get(self._env.get("ISONOMY_METRIC", ""), last.metric),
        )
        self._link.put(pb.WorkerMessage(progress=progress))

    def _ready(self, port: int) -> pb.WorkerReady:
        s = self._settings
        return pb.WorkerReady(host=s.host, port=port, cuda_visible_devices=s.gpu_ids, container_id=s.container_id)


def child_env(env: Mapping[str, str], start: pb.Start, port: int) -> dict[str, str]:
    """The program's environment: the container's, plus the values from Start; `port` is the worker's reserved port."""
    told = {
        "TF_CONFIG": start.tf_config,
        "ISONOMY_UNTIL_STEP": str(start.until_step) if start.until_step > 0 else "",
        "ISONOMY_PACING": start.pacing,
        "ISONOMY_CONFIGURATION": json.dumps(dict(start.configuration), sort_keys=True),
        **rendezvous(start.tf_config, port),
    }
    # `python` in the command must be the Python that runs this supervisor
    told["PATH"] = f"{os.path.dirname(sys.executable)}:{env.get('PATH', os.defpath)}"
    if start.checkpoint_dir:
        told["ISONOMY_CHECKPOINT_DIR"] = start.checkpoint_dir
    gpus = len([g for g in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if g])
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": str(max(1, gpus))}
    child = {**defaults, **env, **told}
    return {name: value for name, value in child.items() if value or name not in told}


def programs(
    command: Sequence[str], env: Mapping[str, str], start: pb.Start, port: int
) -> list[tuple[servers.Task, Sequence[str], dict[str, str]]]:
    """(task, argv, environment) of each program of this container, the first one first."""
    common = child_env(env, start, port)
    if servers.PORTS not in env:
        return [((servers.WORKER, _rank(start)), command, common)]
    gpus = iter(env.get("CUDA_VISIBLE_DEVICES", "").split(","))
    found: list[tuple[servers.Task, Sequence[str], dict[str, str]]] = []
    for task, config in servers.beside(start.tf_config, int(env[servers.PORTS])):
        own = {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": next(gpus, "") if task[0] == servers.WORKER else ""}
        serves = task[0] == servers.SERVER and servers.COMMAND in env
        found.append((task, command_line([env[servers.COMMAND]]) if serves else command, {**common, **own}))
    return found


def _rank(start: pb.Start) -> int:
    return int(json.loads(start.tf_config)["task"]["index"]) if start.tf_config else 0


def rendezvous(tf_config: str, port: int) -> dict[str, str]:
    """The rendezvous of PyTorch's workers, for scripts that use `env://` and (PET_*) for torchrun without options.

    A gang of one has it too, so that scripts need no special case. It has no TF_CONFIG, because MirroredStrategy would
    treat the single worker as a cluster.
    """
    workers, rank = [f"127.0.0.1:{port}"], 0
    if tf_config:
        cluster = json.loads(tf_config)
        workers, rank = cluster["cluster"]["worker"], cluster["task"]["index"]
    host, _, chiefs_port = workers[0].rpartition(":")
    master = {"MASTER_ADDR": host, "MASTER_PORT": chiefs_port}
    nodes = {"NNODES": str(len(workers)), "NODE_RANK": str(rank)}
    # one process per worker, one worker per machine; torchrun starts one process per GPU and numbers them itself
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(len(workers)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**master, **nodes, **ranks, **{f"PET_{name}": value for name, value in {**master, **nodes}.items()}}


def command_line(arguments: Sequence[str]) -> list[str]:
    """The argv to run: a single argument is a bash command line, several are a program and its arguments."""
    piped = ["-o", "pipefail"] if _INTO_TEE.fullmatch(arguments[0]) else []
    return ["/bin/bash", *piped, "-c", arguments[0]] if len(arguments) == 1 else list(arguments)


def _failed(code: int, message: str) -> tuple[int, str]:
    say(message)
    return code, message


def main(arguments: Sequence[str]) -> int:
    """Run `python -m submarine_patch.worker -- COMMAND` and end the process, or return the code of wrong settings."""
    if len(arguments) < 2 or arguments[0] != "--":
        say("usage: python -m submarine_patch.worker -- COMMAND (one argument is run by bash)")
        return EXIT_SETTINGS

    async def supervise() -> NoReturn:
        ended: int | Supervisor = Supervisor(read_settings(), command_line(arguments[1:]), os.environ)
        while isinstance(ended, Supervisor):
            ended = await ended.run()
        os._exit(ended)  # a thread may still wait for the store

    try:
        return asyncio.run(supervise())
    except (SettingsError, ports.NoPortError) as e:
        say(str(e))
        return EXIT_SETTINGS
