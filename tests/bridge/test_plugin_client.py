"""The plugin's own client, in a JVM, against the listening end."""

from __future__ import annotations

import pytest

from tests.bench.bridge import SIZES, measure


@pytest.mark.cluster
def test_the_shipped_client_exchanges_small_and_large_messages() -> None:
    """How long it takes is measured by `make bench`; that nothing waits for Nagle's algorithm, test_server.py and
    BridgeTest.java say."""
    costs = measure()
    assert set(costs) == {f"{size} B" for size in SIZES}
    assert all(cost["n"] == 500 and cost["median_ms"] > 0 for cost in costs.values())
