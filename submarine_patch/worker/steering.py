"""Lets a trainer with its own checkpoints run under Isonomy: when to save and exit, how far to train, and pacing.

Used by the callbacks for Hugging Face's Trainer and Lightning (huggingface.py, lightning.py). `--keep-folder` keeps
the folder of the trainer's checkpoints on HDFS between launches.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submarine_patch.worker import EXIT_STOPPED
from submarine_patch.worker import session as base
from submarine_patch.worker.pacing import Pacer, Pacing, PacingError
from submarine_patch.worker.session import SessionError


class Steering:
    """Steers one process of a training; raises SessionError if ISONOMY_PACING is malformed."""

    def __init__(self) -> None:
        self.until_step = int(os.environ.get("ISONOMY_UNTIL_STEP") or 0)
        """The last step to train; 0: the script decides."""
        self.stopped = False
        try:
            self._pacer = Pacer(Pacing.parse(os.environ), base.stop_request.wait)
        except PacingError as e:
            raise SessionError(str(e)) from e

    def begin(self) -> None:
        """Call when training begins: from now on a stop leads to a checkpoint. Replaces other SIGTERM handlers."""
        base.stop_request.take_over()
        base.stop_request.arm()
        self._pacer.begin()

    def ends(self, step: int) -> bool:
        """Call after each optimizer step: whether to save and end here; all workers get the same answer."""
        self._pacer.end()
        self._pacer.begin()
        self.stopped = _any(base.stop_request.asked)
        return self.stopped or 0 < self.until_step <= step

    def leave(self) -> None:
        """Call after saving: exit with EXIT_STOPPED if the training was stopped, once all workers have saved."""
        if self.stopped:
            _any(True)  # returns once all have told
            sys.stdout.flush()
            sys.exit(EXIT_STOPPED)

    @staticmethod
    def report(step: int, values: Mapping[str, Any]) -> None:
        """Print a JSON line for the Agent with the step and all numbers, among them the loss and --metric."""
        known: dict[str, float] = {}
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):
                continue
            if name != "max_steps" or math.isfinite(number):
                known[name] = int(number) if name == "max_steps" else number
        print(json.dumps({"step": step, **known}), flush=True)


def newest(folder: str | os.PathLike[str], pattern: str, whole: str = "") -> str | None:
    """The path of the newest checkpoint that matches `pattern`, or None; `whole`: a file that it must contain."""
    found = [p for p in Path(folder).glob(pattern) if not whole or (p / whole).is_file()]
    numbered = {p: int((re.findall(r"[0-9]+", p.name) or [0])[-1]) for p in found}
    return str(max(found, key=lambda p: (numbered[p], p.stat().st_mtime))) if found else None


def _any(flag: bool) -> bool:
    """Whether the flag is set on any worker of the gang; all workers must call it."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return flag
    told = torch.tensor([float(flag)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(told)
    return float(told) > 0
