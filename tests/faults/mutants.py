"""Deliberate bugs, each of which some seed must find: `python -m tests.faults.mutants` (make mutants).

A mutant is a piece of code that must be in a folder exactly once, and what takes its place in a copy of the tree. It
applies however the code is laid out and whichever file it moves to; where the code itself changes, adapt the mutant.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.patch import replaced

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 2_000
ARBITER, RUNTIME, RPC = "pycontrol/arbiter", "pycontrol/runtime", "pycontrol/rpc"
BRIDGE, AGENT = "pycontrol/bridge", "submarine_patch/agent"
_STEP = """        self._journal.append(facts, now_s)
        for fact in facts:
            log.debug("fact", fact=fact)
        for effect in effects:
            self._carry_out(effect)
"""

MUTANTS: dict[str, tuple[str, str, str]] = {
    "ends_a_lease_in_use": (
        ARBITER, "if not container_id and lease.gpu not in s.workers.placing:", "if True:"),
    "a_revoked_lease_lasts": (
        ARBITER, "if lease.state == REVOKING and lease.end_s <= now_s:",
        "if lease.state == REVOKING and lease.end_s + 900 <= now_s:"),
    "kills_only_once": (
        ARBITER, "s.gpus.look_at(lease.gpu, s.kills_sent[container_id] + KILL_RETRY_S)", "pass"),
    "a_grant_never_lapses": (
        ARBITER, "elif (lapse_s := _lapse_s(s, lease)) is not None and lapse_s <= now_s:",
        "elif (lapse_s := _lapse_s(s, lease)) is not None and lapse_s <= now_s - 1e6:"),
    "places_half_gangs": (ARBITER, "        if all(asks):", "        if any(asks):"),
    "places_without_lease": (
        ARBITER,
        'if lease is None or lease.app_id != worker.app_id or lease.state == REVOKING:\n    worker.problem',
        "if lease is None:\n    worker.problem"),
    "effects_before_journal": (
        RUNTIME, _STEP,
        "        for effect in effects:\n            self._carry_out(effect)\n"
        "        self._journal.append(facts, now_s)\n"),
    "loses_facts_of_a_big_batch": (
        RUNTIME, "        self._journal.append(facts, now_s)\n",
        "        self._journal.append(facts[:6], now_s)\n"),
    "forgets_switches": (
        ARBITER, 'state.switches = set(data["switches"])', "state.switches = set()"),
    "forgets_the_number_of_rounds": (ARBITER, 'state.rounds = data["rounds"]', "state.rounds = 0"),
    "a_promise_stays_after_it_came_true": (
        ARBITER, "reservation = self.reservations.pop(f.gpu, None)",
        "reservation = self.reservations.get(f.gpu)"),
    "a_gpu_in_use_is_free": (
        ARBITER, "gpu not in self.cluster.container_at and self.usable(gpu)", "self.usable(gpu)"),
    "a_silent_agent_stops_rounds": (
        ARBITER, "elif now_s >= self.current.deadline_s:", "elif now_s >= self.current.deadline_s + 1e9:"),
    "promises_twice": (
        ARBITER, "if gpu not in s.durable.reservations and s.usable(gpu):", "if s.usable(gpu):"),
    "containers_of_before_stay": (
        ARBITER, "self.container_at = {gpu: c.container_id", "self.container_at |= {gpu: c.container_id"),
    "directives_repeat_their_ids": (
        ARBITER, "[super().new_id(kind), str(self.epoch), self._journal_id]", "[super().new_id(kind)]"),
    "takes_events_twice": (BRIDGE, "if message.seq <= self._last_seq:", "if message.seq <= 0:"),
    "skips_events_of_a_new_plugin": (
        BRIDGE, "self._last_seq = message.last_seq", "self._last_seq = max(self._last_seq, message.last_seq)"),
    "directives_never_end": (BRIDGE, "            self._done(event.directive_id)\n", "            pass\n"),
    "a_lost_plugin_needs_no_hello": (BRIDGE, 'self._epoch, self._hello_id = "", 0', "pass"),
    "drops_what_workers_said": (
        RPC, "for kept in self._mailbox(app_id).take():", "for kept in ():"),
    "drops_commands_to_absent_workers": (
        RPC, "waiting = mailbox.commands.pop(stream.name)", "waiting = None"),
    "agent_keeps_what_it_lost": (AGENT, "lost = set(s.held) - set(granted)", "lost = set()"),
    "agent_does_not_say_again": (
        AGENT, "        job.use_accepted = False\n        send_use(s, job)\n", "        pass\n"),
    "agent_keeps_strange_containers": (
        AGENT, "    s.shell(release=am.AmRelease(container_id=m.container_id))\n", "pass"),
    "agent_forgets_to_ask_after_restart": (
        AGENT, "worker.asked = bool(worker.container_id)", "worker.asked = True"),
}  # fmt: skip


def mutated(name: str, root: Path = ROOT) -> tuple[str, str]:
    """(file, its mutated text); ValueError where the mutant does not apply any more."""
    folder, old, new = MUTANTS[name]
    try:
        path, text = replaced(old, new, root / folder)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None
    return str(path.relative_to(root)), text


def seeds_until_found(name: str, seeds: int, jobs: int) -> tuple[int, str]:
    """(seeds played until one broke, what broke); (0, "") where none did."""
    with tempfile.TemporaryDirectory(prefix="isonomy-mutant-") as folder:
        copy = Path(folder)
        for part in ("pycontrol", "submarine_patch", "tests", "confs"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "java", "found"))
        file, text = mutated(name)
        (copy / file).write_text(text)
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": folder}
        command = [sys.executable, "-m", "tests.faults", "--seeds", str(seeds), "--jobs", str(jobs), "--stop-at", "1"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"^seed \d+: (.*)$", done.stdout, re.M)
    count = re.search(r"^(\d+) seeds, ", done.stdout, re.M)
    if found is None and not done.returncode and count is not None:
        return 0, ""
    return int(count[1]) if count else 1, found[1] if found else done.stderr[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="these only")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    missed = 0
    for name in args.names or MUTANTS:
        seeds, what = seeds_until_found(name, args.seeds, args.jobs)
        missed += not seeds
        print(f"{name}: {f'found after {seeds} seeds: {what[:120]}' if seeds else 'NOT found'}", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
