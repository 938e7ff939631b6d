"""Isonomy for scripts and notebooks.

    isonomy.keras.session(...), isonomy.pytorch.session(...), isonomy.tensorflow.session(...)   in a training script
    isonomy.huggingface.callback(), isonomy.lightning.callback("ckpt")                          for their Trainers
    isonomy.submit(...)                                                                         from anywhere

Nothing is imported before it is named: a script loads its own framework only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submarine_patch.cli.api import Failure, Handle, Status, SubmissionError, UsageError, app, submit
    from submarine_patch.worker import huggingface, keras, lightning, pytorch
    from submarine_patch.worker import training as tensorflow

_MODULES = {
    "huggingface": "submarine_patch.worker.huggingface",
    "keras": "submarine_patch.worker.keras",
    "lightning": "submarine_patch.worker.lightning",
    "pytorch": "submarine_patch.worker.pytorch",
    "tensorflow": "submarine_patch.worker.training",
}
_SUBMISSION = ("Failure", "Handle", "Status", "SubmissionError", "UsageError", "app", "submit")

__all__ = ["Failure", "Handle", "Status", "SubmissionError", "UsageError", "app", "huggingface", "keras",
           "lightning", "pytorch", "submit", "tensorflow"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _SUBMISSION:
        return getattr(importlib.import_module("submarine_patch.cli.api"), name)
    raise AttributeError(f"isonomy has no {name!r}; it has {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    return sorted(__all__)
