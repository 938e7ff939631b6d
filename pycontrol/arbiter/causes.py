"""Why GPUs are taken from an app: a kind of a closed list, and a sentence for people."""

from __future__ import annotations

from pycontrol.model.value import value

LOST_ROUND = "lost_round"
"""Others came first in the round of its lease's end."""
GUARANTEE = "guarantee"
"""Borrowed cells are needed by the virtual cluster that owns them."""
BORROWED_SHARE = "borrowed_share"
"""It borrowed more than its virtual cluster's share of the idle GPUs."""
MOVED = "moved"
"""It borrowed this, and goes to cells of its own virtual cluster instead."""
DRAINED = "drained"
BAD_GPU = "bad_gpu"
NODE_LOST = "node_lost"
REFUSED = "refused"
"""The machine refuses its containers."""
RELEASED = "released"
"""The app gave it back itself."""
LAPSED = "lapsed"
"""The grant was not used in time."""
APP_ENDED = "app_ended"
CONTAINER_ENDED = "container_ended"
KINDS = (
    LOST_ROUND, GUARANTEE, BORROWED_SHARE, MOVED, DRAINED, BAD_GPU, NODE_LOST, REFUSED, RELEASED, LAPSED, APP_ENDED,
    CONTAINER_ENDED,
)  # fmt: skip
PREEMPTIONS = (LOST_ROUND, GUARANTEE, BORROWED_SHARE, MOVED, DRAINED, BAD_GPU, NODE_LOST, REFUSED)
"""Those that the app did not bring about itself."""


@value
class Cause:
    """One of KINDS, and a sentence that says more."""

    kind: str
    text: str
