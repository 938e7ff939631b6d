"""The plugin's own client, in a JVM, against the listening end."""

from __future__ import annotations

import pytest

from tests.bench.bridge import measure


@pytest.mark.cluster
def test_large_messages_do_not_stall() -> None:
    """Without TCP_NODELAY on both sides 100 kB would take some 40 ms."""
    costs = measure()
    assert costs["100 B"]["median_ms"] < 5.0
    assert costs["100000 B"]["median_ms"] < 30.0
