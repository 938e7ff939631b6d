"""The kinds of world that are explored, and what may happen in them how often."""

from __future__ import annotations

from pycontrol.arbiter.views.settings import Settings

BEGIN_S = 1e6
"""A number near this one is a moment, and no amount (`digest`)."""
SETTINGS = Settings(lease_s=60, lead_s=10, grant_timeout_s=20, recovery_s=2, round_retry_s=3)
GANG = 2
PLAIN_WANTS = 3
WORK_GPU_S = 2 * SETTINGS.lease_s
AGENT, PLAIN = "agent", "plain"
CELLS = """
cell_types:
  wide: {child: gpu, count: 2, node_level: true}
  narrow: {child: gpu, count: 1, node_level: true}
physical_cells:
  - {type: wide, hosts: [two]}
  - {type: narrow, hosts: [one]}
virtual_clusters:
  root.agent: {wide: 1}
  root.plain: {narrow: 1}
"""
LEND_S = 1.5 * SETTINGS.lease_s
LENT = CELLS.replace("1}", f"1, min_lend_s: {LEND_S}}}")
KINDS = {
    "isonomy": ("isonomy", "", False),
    "themis": ("themis", "", False),
    "cells": ("isonomy", CELLS, False),
    "lent": ("isonomy", LENT, False),
    "changes": ("isonomy", "", True),
    "changes in auctions": ("themis", "", True),
    "changes in cells": ("isonomy", LENT, True),
}
"""Kind of world -> (its policy, the cells file if two virtual clusters own the machines, whether `MORE` happens)."""
BUDGET = {
    "agent arrives": 1,
    "plain arrives": 1,
    "agent ends": 1,
    "plain ends": 1,
    "a container fails": 1,
    "refuse": 2,
    "bad": 1,
    "mend": 1,
    "crash": 1,
    "rm lost": 1,
    "pause": 1,
    "resume": 1,
    "agent lost": 1,
    "sleep": 2,
    "agent lapses": 1,
}
"""How often each may happen; what is not named may happen as often as it can."""
MORE = {
    "node lost": 1,
    "drain": 1,
    "undrain": 1,
    "plain wants less": 1,
    "plain's master fails": 1,
    "agent's master fails": 1,
    "plain moves": 1,
    "boost": 1,
    "clock steps": 1,
}
"""What operators, machines and masters do besides."""
