"""What a trainer with checkpoints of its own needs to run under Isonomy: when to save and leave, how far, how fast.

For the callbacks of Hugging Face's Trainer and of Lightning (huggingface.py, lightning.py). The trainer's own
checkpoints lie in a folder that `--keep-folder` keeps on HDFS between launches.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submarine_patch.worker import EXIT_STOPPED
from submarine_patch.worker import session as base
from submarine_patch.worker.pacing import Pacer, Pacing, PacingError
from submarine_patch.worker.session import SessionError


class Steering:
    """Of one process of a training."""

    def __init__(self) -> None:
        self.until_step = int(os.environ.get("ISONOMY_UNTIL_STEP") or 0)
        """0: as far as the script says."""
        self.stopped = False
        try:
            pacing = Pacing.parse(os.environ)
        except PacingError as e:
            raise SessionError(str(e)) from e
        self._pacer = Pacer(pacing.step_s, base.stop_request.wait) if pacing else None

    def begin(self) -> None:
        """Training begins: from now on a stop is answered with a checkpoint. Trainers set signal handlers, too."""
        base.stop_request.take_over()
        base.stop_request.arm()
        if self._pacer:
            self._pacer.begin()

    def ends(self, step: int) -> bool:
        """After each step of the optimizer: whether the training is to save and end here, on every worker alike."""
        if self._pacer:
            self._pacer.end()
            self._pacer.begin()
        self.stopped = _any(base.stop_request.asked)
        return self.stopped or 0 < self.until_step <= step

    def leave(self) -> None:
        """Once saved: a training that was stopped ends its process, to be started again."""
        if self.stopped:
            sys.stdout.flush()
            sys.exit(EXIT_STOPPED)

    @staticmethod
    def report(step: int, values: Mapping[str, Any]) -> None:
        """A line that tells the Agent: the loss, and any value that can be --metric."""
        known: dict[str, float] = {}
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):
                continue
            if math.isfinite(number):
                known[name] = number
        print(json.dumps({"step": step, **known}), flush=True)


def newest(folder: str | os.PathLike[str], pattern: str, whole: str = "") -> str | None:
    """The path of the checkpoint that was written last, or None; of folders those that have the file `whole`."""
    found = [p for p in Path(folder).glob(pattern) if not whole or (p / whole).is_file()]
    return str(max(found, key=lambda p: (_number(p.name), p.stat().st_mtime))) if found else None


def _number(name: str) -> int:
    digits = "".join(c if c.isdigit() else " " for c in name).split()
    return int(digits[-1]) if digits else 0


def _any(flag: bool) -> bool:
    """Whether any worker of the gang says so; all call it."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return flag
    told = torch.tensor([float(flag)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(told)
    return float(told) > 0
