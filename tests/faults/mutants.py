"""Deliberate bugs, each of which some seed must find: `python -m tests.faults.mutants` (make mutants).

A mutant is a piece of code that must be in a folder exactly once, and what takes its place as its module is imported.
It applies however the code is laid out and whichever file it moves to; where the code itself changes, adapt the
mutant. `FOUND_BY` has a seed that found it, which is played first; where it does not any more, all from 1 on are.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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
        ARBITER,
        "used = tuple(gpu for gpu in lease.gpus if s.in_use(gpu))",
        "used = ()",
    ),
    "a_revoked_lease_lasts": (
        ARBITER,
        "if lease.state == REVOKING and lease.end_s <= now_s:",
        "if lease.state == REVOKING and lease.end_s + 900 <= now_s:",
    ),
    "kills_only_once": (
        ARBITER,
        "s.gpus.look_at(lease.gpus[0], clerk.kills_sent[container_id] + KILL_RETRY_S)",
        "pass",
    ),
    "a_grant_never_lapses": (
        ARBITER,
        "due = [gpu for gpu, at_s in lapses.items() if at_s <= now_s]",
        "due = [gpu for gpu, at_s in lapses.items() if at_s <= now_s - 1e6]",
    ),
    "places_half_gangs": (ARBITER, "        if all(asks):", "        if any(asks):"),
    "places_without_lease": (
        ARBITER,
        "if lease is None or lease.app_id != worker.app_id or lease.state == REVOKING:\n    worker.problem",
        "if lease is None:\n    worker.problem",
    ),
    "effects_before_journal": (
        RUNTIME,
        _STEP,
        "        for effect in effects:\n            self._carry_out(effect)\n"
        "        self._journal.append(facts, now_s)\n",
    ),
    "loses_facts_of_a_big_batch": (
        RUNTIME,
        "        self._journal.append(facts, now_s)\n",
        "        self._journal.append(facts[:6], now_s)\n",
    ),
    "forgets_switches": (ARBITER, 'state.switches = set(data["switches"])', "state.switches = set()"),
    "forgets_the_number_of_rounds": (ARBITER, 'state.rounds = data["rounds"]', "state.rounds = 0"),
    "a_promise_stays_after_it_came_true": (
        ARBITER,
        "self.reservations.drop(x)\nself.leases.put(lease)",
        "self.leases.put(lease)",
    ),
    "a_gpu_in_use_is_free": (ARBITER, "gpu not in self.cluster.container_at and self.usable(gpu)", "self.usable(gpu)"),
    "a_silent_agent_stops_rounds": (
        ARBITER,
        "elif now_s >= self.current.deadline_s:",
        "elif now_s >= self.current.deadline_s + 1e9:",
    ),
    "promises_twice": (
        ARBITER,
        "return gpu not in self.durable.reservations and self.usable(gpu)",
        "return self.usable(gpu)",
    ),
    "containers_of_before_stay": (
        ARBITER,
        "self.container_at = {gpu: c.container_id",
        "self.container_at |= {gpu: c.container_id",
    ),
    "directives_repeat_their_ids": (
        ARBITER,
        '[f"{kind}{self._ids}", str(self.epoch), self._journal_id]',
        '[f"{kind}{self._ids}"]',
    ),
    "takes_events_twice": (BRIDGE, "if message.seq <= self._last_seq:", "if message.seq <= 0:"),
    "skips_events_of_a_new_plugin": (
        BRIDGE,
        "self._last_seq = message.last_seq",
        "self._last_seq = max(self._last_seq, message.last_seq)",
    ),
    "directives_never_end": (BRIDGE, "            self._done(event.directive_id)\n", "            pass\n"),
    "a_lost_plugin_needs_no_hello": (BRIDGE, 'self._epoch, self._hello_id = "", 0', "pass"),
    "drops_what_workers_said": (RPC, "for kept in self.mailbox(app_id).take():", "for kept in ():"),
    "drops_commands_to_absent_workers": (RPC, "waiting = mailbox.commands.pop(stream.name)", "waiting = None"),
    "an_old_stream_takes_the_new_one_along": (
        RPC,
        "if self.agents.get(stream.app_id) is not stream:",
        "if stream.app_id not in self.agents:",
    ),
    "agent_keeps_what_it_lost": (
        AGENT,
        "lost = set(s.held) - set(granted)\ns.held = granted",
        "lost = set[Gpu]()\ns.held = {**s.held, **granted}",
    ),
    "agent_does_not_say_again": (
        AGENT,
        "        job.use_accepted = False\n        send_use(s, job)\n",
        "        pass\n",
    ),
    "agent_forgets_to_ask_after_restart": (AGENT, "worker.asked = bool(worker.container_id)", "worker.asked = True"),
}

FOUND_BY: dict[str, int] = {
    "ends_a_lease_in_use": 1,
    "a_revoked_lease_lasts": 33,
    "kills_only_once": 1074,
    "a_grant_never_lapses": 51,
    "places_half_gangs": 2,
    "places_without_lease": 54,
    "effects_before_journal": 1,
    "loses_facts_of_a_big_batch": 1,
    "forgets_switches": 39,
    "forgets_the_number_of_rounds": 1,
    "a_promise_stays_after_it_came_true": 1,
    "a_gpu_in_use_is_free": 4,
    "a_silent_agent_stops_rounds": 194,
    "promises_twice": 33,
    "containers_of_before_stay": 23,
    "directives_repeat_their_ids": 254,
    "takes_events_twice": 346,
    "skips_events_of_a_new_plugin": 629,
    "directives_never_end": 26,
    "a_lost_plugin_needs_no_hello": 777,
    "drops_what_workers_said": 218,
    "drops_commands_to_absent_workers": 76,
    "agent_keeps_what_it_lost": 33,
    "an_old_stream_takes_the_new_one_along": 68,
    "agent_does_not_say_again": 54,
    "agent_forgets_to_ask_after_restart": 505,
}


def mutated(name: str, root: Path = ROOT) -> tuple[str, str]:
    """(file, its mutated text); ValueError where the mutant does not apply any more."""
    folder, old, new = MUTANTS[name]
    try:
        path, text = replaced(old, new, root / folder)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None
    return str(path.relative_to(root)), text


class Mutation(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with another text than its file has."""

    def __init__(self, file: str, text: str) -> None:
        self.module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.file, self.text = file, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.text, str(ROOT / self.file), "exec"), module.__dict__)


def play(name: str, seeds: Iterable[int]) -> int:
    """Plays seeds with a mutant in this process, and prints the first that finds it; its exit status."""
    mutation = Mutation(*mutated(name))
    assert mutation.module not in sys.modules, f"{mutation.module} was imported before it could be mutated"
    sys.meta_path.insert(0, mutation)
    from tests.faults.__main__ import play as play_schedule
    from tests.faults.schedule import draw

    begun_s, played = time.process_time(), 0
    for seed in seeds:
        played += 1
        kind, text, _ = play_schedule(draw(seed))
        if kind == "crash":
            raise RuntimeError(f"the world itself fails: {text}")
        if kind:
            print(f"seed {seed} after {played} in {time.process_time() - begun_s:.0f} s: {' '.join(text.split())}")
            return 0
    print(f"nothing in {played} seeds, {time.process_time() - begun_s:.0f} s")
    return 1


def first_found(name: str, seeds: int) -> tuple[int, str]:
    """(seed that found it, what it says) of a process of its own; seed 0 where none did."""
    known = FOUND_BY.get(name)
    tries = [[str(known)]] if known else []
    for chosen in [*tries, [f"1..{seeds}"]]:
        command = [sys.executable, "-m", "tests.faults.mutants", name, "--play", *chosen]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        found = re.search(r"^seed (\d+) (.*)$", done.stdout, re.M)
        if found is not None:
            return int(found[1]), found[2]
        if done.returncode != 1 or not done.stdout.startswith("nothing"):
            raise RuntimeError(f"{name}: {done.stderr[-1000:]}")
    return 0, f"NOT found in {seeds} seeds"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="these only")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument(
        "--play", nargs="+", metavar="SEED", help="with the first mutant, these or a..b, in this process"
    )
    args = parser.parse_args()
    if args.play:
        return play(args.names[0], (s for part in args.play for s in _seeds(part)))
    missed = 0
    print(f"{'mutant':<40} {'seed':>5}  seeds played, CPU seconds, what broke")
    for name in args.names or MUTANTS:
        seed, what = first_found(name, args.seeds)
        missed += not seed
        print(f"{name:<40} {seed or '-':>5}  {what[:150]}", flush=True)
    return bool(missed)


def _seeds(text: str) -> range:
    low, _, high = text.partition("..")
    return range(int(low), int(high or low) + 1)


if __name__ == "__main__":
    sys.exit(main())
