"""The page for browsers: rendered here, from the same views as the REST resource; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Read = Callable[[str, Mapping[str, str]], dict[str, Any]]
"""(view, parameters) -> its JSON; raises Refusal, TimeoutError, queue.Full or Overloaded."""
Row = Mapping[str, Any]
