"""Random mixes of apps for two tenants and a queue without cells, with a crash and a lost machine."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.arbiter.world import World

Mix = list[tuple[str, int, int, int, int]]
"""For each app: queue, GPUs of a gang, jobs, work in s, arrival in s."""


def mixes(most_s: int = 300) -> st.SearchStrategy[Mix]:
    """Mixes in which no job has more work than this."""
    queues, gangs = st.sampled_from(["root.a", "root.b", "root.x"]), st.sampled_from([1, 2, 4])
    app = st.tuples(queues, gangs, st.integers(1, 4), st.integers(20, most_s), st.integers(0, 90))
    return st.lists(app, min_size=1, max_size=5)


SOMETIMES_S = st.none() | st.integers(5, 150)
BAD_GPUS = st.lists(st.tuples(st.integers(5, 150), st.sampled_from(["n1", "n2", "n4"]), st.integers(1, 3)), max_size=2)
"""For each: when, where, and how many GPUs are marked bad."""


def plan(w: World, apps: Mix, crash_s: int | None, lost_s: int | None) -> None:
    """Schedules the apps, a crash of the Arbiter, and the loss of n1 for a minute."""
    for i, (queue, gang, jobs, work, arrival) in enumerate(apps):
        w.at(arrival, lambda i=i, q=queue, g=gang, j=jobs, k=work: w.add_app(f"app{i}", g, j, k, q))
    if crash_s is not None:
        w.at(crash_s, w.crash)
    if lost_s is not None:
        w.at(lost_s, lambda: w.lose_node("n1"))
        w.at(lost_s + 60, lambda: w.node_back("n1"))
