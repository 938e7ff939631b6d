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

__all__ = ["Failure", "Handle", "Status", "SubmissionError", "UsageError", "app", "submit"]
__all__ += ["huggingface", "keras", "lightning", "pytorch", "tensorflow"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"isonomy has no {name!r}; it has {', '.join(sorted(__all__))}")
    if name in ("huggingface", "keras", "lightning", "pytorch", "tensorflow"):
        return importlib.import_module(f"submarine_patch.worker.{'training' if name == 'tensorflow' else name}")
    return getattr(importlib.import_module("submarine_patch.cli.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
