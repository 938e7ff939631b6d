"""Races planted in the Arbiter; the search must find each: `python -m tests.explore.planted`.

The first three were there once. A name stands for (folder, what is there, what takes its place, kind of world).
"""

from __future__ import annotations

import subprocess
import sys

from tests.faults.mutants import ROOT, Mutation
from tests.faults.patch import replaced

ARBITER = "pycontrol/arbiter"
STATES_MAX = 400
PLANTED: dict[str, tuple[str, str, str, str]] = {
    "resume_does_not_extend_leases": (
        ARBITER,
        "leases.extend_after_pause(self.holdings, self.clerk, now_s)\nself.clerk.request_round(now_s)",
        "self.clerk.request_round(now_s)",
        "isonomy",
    ),
    "leases_of_vanished_containers_never_idle": (
        ARBITER,
        "if lease.container_id and lease.container_id not in self.cluster.containers:",
        "if False:",
        "isonomy",
    ),
    "a_bad_gpu_counts_as_held": (
        ARBITER,
        "    for gpu in sorted(filter(s.cluster.bad, held)):",
        "    for gpu in sorted(g for g in held if s.cluster.bad(g) and not (g in s.cluster.container_at and "
        "g in s.durable.leases and s.is_unmanaged(s.durable.leases[g].app_id))):",
        "isonomy",
    ),
    "ends_a_lease_in_use": (
        ARBITER,
        "used = tuple(gpu for gpu in lease.gpus if s.in_use(gpu))",
        "used = ()",
        "isonomy",
    ),
    "a_gpu_in_use_is_free": (
        ARBITER,
        "gpu not in self.cluster.container_at and self.usable(gpu)",
        "self.usable(gpu)",
        "isonomy",
    ),
    "forgets_switches": (ARBITER, 'state.switches = set(data["switches"])', "state.switches = set()", "isonomy"),
    "a_promise_stays_after_it_came_true": (
        ARBITER,
        "self.reservations.drop(x)\nself.leases.put(lease)",
        "self.leases.put(lease)",
        "isonomy",
    ),
    "places_half_gangs": (ARBITER, "        if all(asks):", "        if any(asks):", "isonomy"),
    "a_grant_never_lapses": (
        ARBITER,
        "due = [gpu for gpu, at_s in lapses.items() if at_s <= now_s]",
        "due = []",
        "isonomy",
    ),
    "a_refused_placement_is_not_retried": (
        ARBITER,
        "    _wait_again(s, clerk, worker)\n    leases.not_placed(s, clerk, worker.plan.gpus, now_s)",
        "    leases.not_placed(s, clerk, worker.plan.gpus, now_s)",
        "isonomy",
    ),
    "leases_end_while_the_cluster_is_away": (
        ARBITER,
        "return s.paused or not s.cluster.settled(now_s)",
        "return s.paused",
        "isonomy",
    ),
    "a_silent_agent_stops_rounds": (
        ARBITER,
        "elif now_s >= self.current.deadline_s:",
        "elif now_s >= self.current.deadline_s + 1e9:",
        "themis",
    ),
    "directives_of_before_are_not_forgotten": (
        ARBITER,
        "        workers.forget_directives(self.holdings, self.clerk)\n",
        "",
        "isonomy",
    ),
    "containers_of_before_stay": (
        ARBITER,
        "self.container_at = {gpu: c.container_id",
        "self.container_at |= {gpu: c.container_id",
        "isonomy",
    ),
    "a_loan_is_called_back_before_its_time": (
        ARBITER,
        "for x in (s.durable.leases.each() if least_s else ())",
        "for x in ()",
        "lent",
    ),
}


def play(name: str) -> int:
    """Searches with a race in place; 0 if it is found."""
    folder, old, new, kind = PLANTED[name]
    path, text = replaced(old, new, ROOT / folder)
    sys.meta_path.insert(0, Mutation(str(path.relative_to(ROOT)), text))
    from tests.explore.search import search

    found = search(kind, STATES_MAX)
    print(f"{found.states} states, {len(found.path)} moves: {found.failure.splitlines()[0] if found.failure else ''}")
    print("; ".join(found.path))
    return 0 if found.failure else 1


def main() -> int:
    """Plays each race in a process of its own; 1 if one is not found."""
    if len(sys.argv) > 1:
        return play(sys.argv[1])
    missed = 0
    for name in PLANTED:
        command = [sys.executable, "-m", "tests.explore.planted", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        missed += done.returncode != 0
        said = done.stdout.strip().splitlines() or [done.stderr[-300:]]
        print(f"{name:<42} {'' if not done.returncode else 'NOT found '}{' | '.join(said)}"[:400], flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
