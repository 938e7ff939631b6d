"""The cost of a start from a journal with very many facts, and with as many after the last snapshot as possible."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pycontrol.arbiter.ledger.facts import AppArrived, AppEnded, Fact, LeaseEnded, LeaseGranted, LeaseStarted, RoundHeld
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.runtime.journal_keeper import JournalKeeper

AT_ONCE = 1000


def life(facts: int) -> Iterator[Fact]:
    """The facts of apps that arrive, hold eight GPUs, and end; a receipt for each."""
    n = 0
    for k in range(facts):
        app_id, host, at_s = f"application_1700000000000_{k:07}", f"host{k % 1250:04}", float(k)
        one: list[Fact] = [AppArrived(app_id, "train", "root.research", f"user{k % 40}", "foreign", at_s, at_s)]
        gpus = [Gpu(host, i) for i in range(8)]
        one += [LeaseGranted((g,), app_id, f"r1.{k}.0", at_s, at_s + 600, f"r1.{k}.0") for g in gpus]
        one += [LeaseStarted((g,), f"container_{k}", "", at_s + 1, at_s + 600) for g in gpus]
        one += [LeaseEnded((g,), at_s + 60, "container ended") for g in gpus]
        receipt = {
            "round_id": f"r1.{k}",
            "awards": [],
            "out": {},
            "why": {},
            "granted": [{"gpu": str(g), "app_id": app_id} for g in gpus],
        }
        one += [RoundHeld(f"r1.{k}", at_s, Receipt.load(receipt)), AppEnded(app_id, "FINISHED", at_s + 60)]
        for fact in one:
            yield fact
            n += 1
            if n == facts:
                return


def run(facts: int = 1_000_000, after_snapshot: int = 100_000) -> dict[str, Any]:
    """CPU seconds and sizes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = SqliteJournal(path)
        begin_s, batch, written = time.process_time(), [], 0
        keeper = JournalKeeper(path, 1e12, 1 << 40, time.time, rest_s=0.0)
        for fact in life(facts):
            batch.append(fact)
            if len(batch) == AT_ONCE or written + len(batch) == facts:
                journal.append(batch, 0.0)
                written += len(batch)
                batch = []
                if written == facts - after_snapshot:
                    appended_s = time.process_time() - begin_s
                    keeper.keep()
                    snapshot_s = time.process_time() - begin_s - appended_s
        journal.close()
        begin_s, begin_wall_s = time.process_time(), time.monotonic()
        journal = SqliteJournal(path)
        state = journal.recover()
        receipts = len(journal.rounds(200))
        recover_s, wall_s = time.process_time() - begin_s, time.monotonic() - begin_wall_s
        size = journal.size()
        journal.close()
    return {
        "facts": facts,
        "after_snapshot": size.facts_after_snapshot,
        "mb": size.bytes / 1e6,
        "apps": len(state.apps),
        "receipts": receipts,
        "append_us_per_fact": 1e6 * appended_s / (facts - after_snapshot),
        "first_snapshot_cpu_s": snapshot_s,
        "recover_cpu_s": recover_s,
        "recover_wall_s": wall_s,
    }


if __name__ == "__main__":
    print(run())
