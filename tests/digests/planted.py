"""Planted changes of a decision, each of which the digests must find: `python -m tests.digests.planted`."""

from __future__ import annotations

import subprocess
import sys

from tests.faults.mutants import ROOT, Mutation
from tests.faults.patch import replaced

ARBITER, POLICIES, AUCTION, QUERIES = (
    "pycontrol/arbiter",
    "pycontrol/policies",
    "pycontrol/auction",
    "pycontrol/queries",
)
PLANTED: dict[str, tuple[str, str, str]] = {
    "fewer_leases_end_together": (ARBITER, "now_s + 1.5 * self.s.lead_s", "now_s + 1.0 * self.s.lead_s"),
    "losers_stay_half_a_lead": (
        ARBITER,
        "deadline_s = max(min(x.end_s for x in all_of), now_s + s.lead_s)",
        "deadline_s = max(min(x.end_s for x in all_of), now_s + 1.5 * s.lead_s)",
    ),
    "a_renewal_is_shorter": (
        ARBITER,
        "extend(s, clerk, ((x.end_s, gpus_in(x.leases))",
        "extend(s, clerk, ((x.end_s - 0.5, gpus_in(x.leases))",
    ),
    "no_last_pass": (
        ARBITER,
        "return last_pass(plan, r.snapshot, lambda app_id: r.openings.kept_out(app_id, ending=False))",
        "return plan",
    ),
    "the_last_pass_likes_the_largest": (
        POLICIES,
        "caps.gpus(v), v.submitted_s, v.app_id",
        "-caps.gpus(v), v.submitted_s, v.app_id",
    ),
    "the_paid_come_first": (POLICIES, "-v.priority, v.app_id in paid,", "-v.priority, v.app_id not in paid,"),
    "a_wide_gang_takes_small_remainders": (
        AUCTION,
        "min(left, key=lambda h: (-left[h], h))",
        "min(left, key=lambda h: (left[h], h))",
    ),
    "any_home_will_do": (
        POLICIES,
        "homes.sort(key=lambda g: (gang_gpus(g) != d.gang_gpus, self._scope(g), len(g), -lost_s[g] // 60))",
        "homes.reverse()",
    ),
    "the_first_to_stay_loses": (POLICIES, "pick = self.stays.pop()", "pick = self.stays.pop(0)"),
    "no_place_is_better": (POLICIES, "gang = self._better(pick, home)", "gang = None"),
    "used_hosts_last": (
        AUCTION,
        "(whole.get(h) == n, h) for h, m in self.free.items()",
        "(True, h) for h, m in self.free.items()",
    ),
    "the_fastest_type_last": (AUCTION, "(-demand.speedups.get(t, 1.0), t)", "(demand.speedups.get(t, 1.0), t)"),
    "bad_gpus_are_usable": (
        ARBITER,
        "gpu.host in self.cluster.node_at and not self.cluster.bad(gpu) and not self.drained(gpu.host)",
        "gpu.host in self.cluster.node_at and not self.drained(gpu.host)",
    ),
    "drained_hosts_are_usable": (
        ARBITER,
        "gpu.host in self.cluster.node_at and not self.cluster.bad(gpu) and not self.drained(gpu.host)",
        "gpu.host in self.cluster.node_at and not self.cluster.bad(gpu)",
    ),
    "a_grant_lapses_later": (
        ARBITER,
        "return since_s + s.settings.grant_timeout_s",
        "return since_s + 2 * s.settings.grant_timeout_s",
    ),
    "narrow_gangs_come_last": (
        AUCTION,
        "lambda want: (want.scope, -want.gang_gpus)",
        "lambda want: (-want.scope, -want.gang_gpus)",
    ),
    "nothing_is_extended_after_a_pause": (ARBITER, "if x.end_s < earliest_s]", "if x.end_s < 0.0]"),
    "borrowers_come_last_in_name": (ARBITER, "            if len(gpus_in(borrowed)) == size:", "            if False:"),
    "a_reason_is_another": (
        QUERIES,
        "return Reason(Pending.WAITING_FOR_ROUND if a.gpus.free.count else Pending.NO_FREE_GPUS)",
        "return Reason(Pending.NO_FREE_GPUS)",
    ),
    "reserved_gpus_are_promised_later": (
        ARBITER,
        "end_s = now_s + (self.end_s - self.granted_s)",
        "end_s = self.end_s",
    ),
}


def play(name: str) -> int:
    """Compares with the change in place, workload by workload, until one differs; 0 if one does."""
    folder, old, new = PLANTED[name]
    path, text = replaced(old, new, ROOT / folder)
    sys.meta_path.insert(0, Mutation(str(path.relative_to(ROOT)), text))
    from tests.digests import workloads
    from tests.digests.__main__ import difference

    for policy in ("isonomy", "themis", "tiresias", "gandiva", "oef"):
        for workload in workloads.names():
            found = difference(policy, [workload])
            if found:
                print(f"{policy}, {workload}: {found[1:] and found[-1]}")
                return 0
    return 1


def main() -> int:
    """Plays each change in a process of its own; 1 if one is not found."""
    if len(sys.argv) > 1:
        return play(sys.argv[1])
    missed = 0
    for name in PLANTED:
        command = [sys.executable, "-m", "tests.digests.planted", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        found = done.stdout.strip()
        missed += not found
        print(f"{name:<36} {found or 'NOT found ' + done.stderr[-300:]}"[:200], flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
