"""The development cluster's browser, for tests: without one they are skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev-cluster"))

from devcluster import browser
from devcluster.browser import complaints, prefer, resize, shoot

__all__ = ["chromium", "complaints", "prefer", "resize", "shoot"]


@contextmanager
def chromium(profile: Path, script: bool = True) -> Iterator[Any]:
    """A browser with an empty profile; skips the test where there is none."""
    try:
        with browser.chromium(profile, script) as found:
            yield found
    except browser.NoBrowser as e:
        pytest.skip(str(e))
