"""The journal: its content survives new versions, damage and pruning, and what it cannot read is one line."""

import json
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    AllocationChanged,
    AppArrived,
    AppChanged,
    AppsForgotten,
    ClockBehind,
    Fact,
    LeaseEnded,
    LeaseGranted,
    LeaseStarted,
    LimitsSet,
    PolicyMemory,
    RoundHeld,
)
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model.grouping import summed
from pycontrol.model.reasons import EndReason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.runtime.gpu_time import without
from pycontrol.runtime.journal import JournalError, SqliteJournal, read_facts, read_totals
from pycontrol.runtime.journal_check import check_journal, repair_journal
from pycontrol.runtime.journal_keeper import JournalKeeper
from pycontrol.runtime.journal_rows import VERSION
from tests.arbiter.mini import Mini

GOLDEN = Path(__file__).parents[1] / "journals"
APP = "application_1_0001"


def gpu(index: int) -> Gpu:
    return Gpu("n1", index)


def facts(rounds: int = 3) -> list[Fact]:
    """An app that gets, starts and gives back a GPU in each round."""
    found: list[Fact] = [AppArrived(APP, "sweep", "root.a", "alice", "job", 1.0, 2.0)]
    for n in range(rounds):
        found += [
            LeaseGranted((gpu(n % 8),), APP, f"r1.{n}", float(n), n + 600.0),
            RoundHeld(f"r1.{n}", float(n), Receipt.load({"round_id": f"r1.{n}", "awards": [], "why": {APP: "x" * 50}})),
            LeaseStarted((gpu(n % 8),), f"c{n}", "j", n + 1.0, n + 600.0),
            LeaseEnded((gpu(n % 8),), n + 2.0, "released"),
        ]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def written(path: Path, what: list[Fact], now_s: float = 10.0) -> Durable:
    """Appends facts as a separate process would, and returns their fold."""
    journal = SqliteJournal(path)
    journal.append(what, now_s)
    state = journal.recover()
    journal.close()
    return state


def recovered(path: Path) -> Durable:
    journal = SqliteJournal(path)
    try:
        return journal.recover()
    finally:
        journal.close()


def keeper(path: Path, now_s: float = 100.0, retention_s: float = 1e9, max_bytes: int = 1 << 40) -> JournalKeeper:
    return JournalKeeper(path, retention_s, max_bytes, lambda: now_s, rest_s=0.0)


def execute(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement, values)
        db.commit()


def plain(state: Durable) -> object:
    return json.loads(json.dumps(state.dump(), sort_keys=True))


def as_known_to(expected: Any, found: Any) -> Any:
    """`found` without the fields that an older version's state lacks."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {k: as_known_to(expected[k], v) for k, v in found.items() if k in expected}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [as_known_to(e, f) for e, f in zip(expected, found, strict=True)]
    return found


# ---- versions


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.sql")), ids=lambda p: p.stem)
def test_journals_of_every_earlier_version_are_read(golden: Path, path: Path) -> None:
    """`VERSION.sql` was written by that version (of isonomy, or of the journal), which recovered `VERSION.json`."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(golden.read_text(encoding="utf-8"))
    expected = json.loads(golden.with_suffix(".json").read_text(encoding="utf-8"))
    for lease in (*expected["leases"], *expected["next"]):
        if "gpu" in lease:
            lease["gpus"] = [lease.pop("gpu")]  # before version 3, a lease had one GPU
    for app in expected["apps"]:
        for counted in ("leases", "renewals", "revocations"):
            del app[counted]  # before 0.3.0, they counted the GPUs of leases
    before = list(read_facts(path))
    kinds = {"0.1.0": 17, "version-2": 21, "version-3": 21, "version-4": 24, "version-5": 27, "version-6": 27}
    assert len({type(fact) for _, _, fact in before}) == kinds[golden.stem], "every kind of fact of that version"
    assert check_journal(path)["readable"]
    journal = SqliteJournal(path)
    assert as_known_to(expected, plain(journal.recover())) == expected
    assert [r.round_id for r in journal.rounds(10)] == ["r1.1"]
    journal.append([AppChanged(APP, {"message": "continues"})], 2000.0)
    journal.close()
    assert as_known_to(expected, plain(recovered(path))) == expected | {
        "apps": [a | {"message": "continues"} if a["app_id"] == APP else a for a in expected["apps"]]
    }
    assert list(read_facts(path))[: len(before)] == before


def test_receipts_that_name_each_host_are_read(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript((GOLDEN / "version-6.sql").read_text(encoding="utf-8"))
    (receipt,) = SqliteJournal(path).rounds(1)
    assert receipt.offered == {"n1": 2, "n2": 2, "n9": 1}
    assert receipt.done.unused_gpus == {"n2": 2}


def test_lost_time_that_an_earlier_version_counted_has_no_known_cause_and_later_time_has(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript((GOLDEN / "version-5.sql").read_text(encoding="utf-8"))
    before = lost_of(path)
    assert set(before) == {"unknown", "lost_round"}
    lease = recovered(path).leases[Gpu("n1", 0)]
    node_lost = LeaseEnded(lease.gpus, 2000.0, "node n1 is lost", EndReason.NODE_LOST)
    written(path, [node_lost, AppChanged(APP, {"launched": {lease.job_id: 2}})], 2000.0)
    keeper(path, 2000.0).keep()
    again = [
        LeaseGranted((gpu(5),), APP, "r9.1", 2100.0, 2700.0),
        LeaseStarted((gpu(5),), "c9", lease.job_id, 2100.0, 2700.0),
        AllocationChanged(APP, lease.job_id, 2130.0, 30.0),
    ]
    written(path, again, 2130.0)
    for _ in range(2):  # j0 has three more GPUs
        found = lost_of(path)
        assert (found["unknown"], found["node_lost"]) == pytest.approx((before["unknown"], 4 * 30.0))
        keeper(path, 2130.0).keep()


def lost_of(path: Path) -> dict[str, float]:
    totals = read_totals(path)
    assert totals is not None
    return summed(pair for tally in totals.rows.values() for pair in tally.causes.items())


def test_version_one_restarted_its_numbers_after_everything_was_pruned(path: Path) -> None:
    """Facts numbered from 1 again count as later than the snapshot at 9."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((GOLDEN / "0.1.0.sql").read_text(encoding="utf-8"))
        db.execute("DELETE FROM facts")
        db.execute(
            "INSERT INTO facts VALUES (1, 2, 9000, 'AppChanged', ?)",
            (json.dumps({"app_id": APP, "changes": {"message": "late"}}),),
        )
        db.commit()
    assert recovered(path).apps[APP].message == "late"


def test_a_newer_journal_is_refused_in_one_line(path: Path) -> None:
    written(path, facts())
    newer = VERSION + 1
    execute(path, f"UPDATE meta SET value = '{newer}' WHERE key = 'version'")
    with pytest.raises(JournalError, match=f"by version {newer} of the journal, this one reads up to {VERSION}:"):
        SqliteJournal(path)
    with pytest.raises(JournalError, match=f"version {newer}"):
        check_journal(path)
    with pytest.raises(JournalError, match=f"version {newer}"):
        repair_journal(path)


def test_a_file_that_is_not_a_journal_is_not_changed(path: Path) -> None:
    path.write_bytes(b"hello\n" * 200)
    with pytest.raises(JournalError, match="not a journal"):
        SqliteJournal(path)
    path.unlink()
    execute(path, "CREATE TABLE guests (name TEXT)")
    with pytest.raises(JournalError, match="tables of something else"):
        SqliteJournal(path)


# ---- sizes


def test_large_rows_are_compressed_and_read_back(path: Path) -> None:
    receipt = {"round_id": "r1.1", "awards": [], "why": {f"application_1_{n:04}": "outranked" for n in range(500)}}
    written(path, [RoundHeld("r1.1", 1.0, Receipt.load(receipt))])
    with closing(sqlite3.connect(path)) as db:
        stored = db.execute("SELECT length(data) FROM facts").fetchone()[0]
    assert stored * 5 < len(json.dumps(receipt))
    assert [fact for _, _, fact in read_facts(path)] == [RoundHeld("r1.1", 1.0, Receipt.load(receipt))]


def test_a_journal_stays_within_its_size(path: Path) -> None:
    """The size limit takes precedence over the retention; what a start needs is never dropped."""
    state, house = Durable(), keeper(path, max_bytes=400_000)
    for n in range(12):
        state = written(path, facts(200) if n == 0 else facts(200)[1:])
        house.keep()
    assert path.stat().st_size < 1_200_000, "about 150 kB are written each time"
    assert plain(recovered(path)) == plain(state)
    assert sum(1 for _ in read_facts(path)) < 12 * 800


def test_pruning_keeps_facts_younger_than_the_retention(path: Path) -> None:
    written(path, facts(5), now_s=10.0)
    house = keeper(path, now_s=100.0, retention_s=50.0)
    house.keep()
    assert len(list(read_facts(path))) == 21, "facts after the last but one snapshot stay"
    written(path, facts(5)[1:], now_s=90.0)
    house.keep()
    house.keep()
    assert {time_s for _, time_s, _ in read_facts(path)} == {90.0}
    assert recovered(path).apps[APP].leases == 10


def test_facts_after_all_others_were_pruned_count(path: Path) -> None:
    """SQLite numbers an empty table's rows from 1; a snapshot at 21 would hide them."""
    written(path, facts(5), now_s=10.0)
    house = keeper(path, now_s=1e6, retention_s=1.0)
    house.keep()
    written(path, [AppChanged(APP, {"message": "a"})], now_s=20.0)
    house.keep()
    execute(path, "DELETE FROM facts")
    written(path, [AppChanged(APP, {"message": "b"})], now_s=1e6)
    assert recovered(path).apps[APP].message == "b"


def test_a_snapshot_is_the_fold_of_the_rows(path: Path) -> None:
    """The keeper works while the control plane appends."""
    journal = SqliteJournal(path)
    journal.append(facts(50), 1.0)
    house = keeper(path)
    house.keep()
    journal.append(facts(50)[1:], 2.0)
    house.keep()
    state = journal.recover()
    journal.close()
    assert check_journal(path)["facts_after_snapshot"] == 0
    assert state.apps[APP].leases == 100
    assert plain(recovered(path)) == plain(state)


def test_a_failed_snapshot_leaves_no_transaction_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = SqliteJournal(path)
    journal.append(facts(), 1.0)
    house = keeper(path)

    def full(*_: object) -> bytes:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as m:
        m.setattr("pycontrol.runtime.journal_keeper.write_snapshot", full)
        with pytest.raises(sqlite3.OperationalError):
            house.keep()
    journal.append([AppChanged(APP, {"message": "still"})], 2.0)
    house.keep()
    journal.close()
    assert recovered(path).apps[APP].message == "still"


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk is full"), RuntimeError("odd")])
def test_the_keeper_goes_on_after_an_error(path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("pycontrol.runtime.journal_keeper.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("pycontrol.runtime.journal_keeper.RETRY_S", 0.01)
    house, tries, kept = keeper(path), [], threading.Event()

    def due() -> bool:
        tries.append(len(tries))
        if len(tries) < 3:
            raise error
        return True

    monkeypatch.setattr(house, "due", due)
    monkeypatch.setattr(house, "keep", kept.set)
    house.start()
    assert kept.wait(30.0)
    house.stop()


def test_a_failed_append_leaves_no_transaction_open(path: Path) -> None:
    journal = SqliteJournal(path)
    with pytest.raises(TypeError):
        journal.append([*facts(1), PolicyMemory({"no JSON": object()})], 1.0)
    journal.append(facts(1), 1.0)
    assert journal.recover().apps[APP].leases == 1
    journal.close()


def test_forgotten_apps_are_gone(path: Path) -> None:
    written(path, facts(1))
    state = written(path, [AppsForgotten((APP,))])
    assert not state.apps


# ---- damage


def damaged(path: Path, kind: str, how: Callable[[Any], object]) -> None:
    with closing(sqlite3.connect(path)) as db:
        seq, data = db.execute("SELECT MAX(seq), data FROM facts WHERE kind = ?", (kind,)).fetchone()
        db.execute("UPDATE facts SET data = ? WHERE seq = ?", (how(data), seq))
        db.commit()


@pytest.mark.parametrize(
    "how",
    [
        lambda data: data[:-5],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: b"\x00\xff",
        lambda data: "",
        lambda data: "[]",
        lambda data: 7,
    ],
    ids=["cut", "changed", "bytes", "empty", "list", "number"],
)
def test_a_damaged_receipt_is_quarantined(path: Path, how: Callable[[Any], object]) -> None:
    state = written(path, facts())
    state.rounds -= 1  # ids of rounds stay unique: they carry the epoch of the start
    damaged(path, "RoundHeld", how)
    assert check_journal(path)["readable"]
    journal = SqliteJournal(path)
    assert plain(journal.recover()) == plain(state)
    assert [line.partition(":")[0] for line in journal.set_aside] == ["row 11 (RoundHeld) is damaged"]
    assert [r.round_id for r in journal.rounds(9)] == ["r1.1", "r1.0"]
    journal.close()
    assert plain(recovered(path)) == plain(state)
    assert check_journal(path)["problems"] == []
    assert check_journal(path)["set_aside"] == 1


BAD_ROWS = {
    "UPDATE facts SET data = substr(data, 1, 9)": r"row 6 \(LeaseGranted\) is damaged",
    "UPDATE facts SET kind = 'LeasePainted', crc = NULL": "of a kind that this version does not know",
    "UPDATE facts SET data = json_set(data, '$.colour', 'red'), crc = NULL": "cannot be understood",
    """UPDATE facts SET kind = 'LeaseExtended', data = '{"gpu": ["n9", 1], "end_s": 1}', crc = NULL""": "does not fit",
    "DELETE FROM facts": "row 6 .* is missing",
}


@pytest.mark.parametrize(("change", "problem"), BAD_ROWS.items())
def test_any_other_bad_row_is_one_clear_line_and_can_be_repaired(path: Path, change: str, problem: str) -> None:
    written(path, facts(1))
    before = written(path, [LeaseGranted((gpu(7),), APP, "r1.9", 5.0, 600.0), *facts(4)[5:]])
    execute(path, f"{change} WHERE seq = 6")
    with pytest.raises(JournalError, match=problem) as e:
        recovered(path)
    assert "\n" not in str(e.value)
    assert f"isonomy journal check {path}" in str(e.value)
    report = check_journal(path)
    assert not report["readable"]
    done = repair_journal(path)
    assert len(done) == 1
    assert "leases are taken from the containers that run" in done[0]
    assert check_journal(path)["readable"]
    state = recovered(path)
    assert state.apps.keys() == before.apps.keys()
    assert not state.leases
    written(path, [AppChanged(APP, {"message": "on"})])
    assert recovered(path).apps[APP].message == "on"
    assert [type(f) for _, _, f in read_facts(path)] == [type(f) for f in facts(1)] + [AppChanged]
    assert repair_journal(path) == []


def test_the_previous_snapshot_replaces_a_damaged_one(path: Path) -> None:
    written(path, facts(3))
    house = keeper(path)
    house.keep()
    state = written(path, facts(3)[1:])
    house.keep()
    execute(path, "UPDATE snapshots SET data = x'0102' WHERE seq = (SELECT MAX(seq) FROM snapshots)")
    journal = SqliteJournal(path)
    assert plain(journal.recover()) == plain(state)
    assert "checksum" in journal.set_aside[0]
    journal.close()
    assert "dropped" in repair_journal(path)[0]
    assert check_journal(path)["problems"] == []
    execute(path, "UPDATE snapshots SET data = x'0102'")
    execute(path, "DELETE FROM facts WHERE seq < 5")
    with pytest.raises(JournalError, match="the facts before it are gone"):
        recovered(path)
    with pytest.raises(JournalError, match="it cannot be mended"):
        repair_journal(path)


def test_a_torn_file_is_salvaged(path: Path) -> None:
    """The tail of the file is lost, as on a disk that filled up or a copy that broke off; the totals are kept."""
    written(path, facts(10))
    keeper(path).keep()
    totals = read_totals(path, newest=False)
    written(path, facts(400))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(JournalError) as e:
        recovered(path)
    assert "\n" not in str(e.value)
    assert not check_journal(path)["readable"]
    done = repair_journal(path)
    assert "could be read" in done[0]
    assert len(list(path.parent.glob("journal-damaged-*.sqlite"))) == 1
    assert APP in recovered(path).apps
    assert check_journal(path)["readable"]
    assert totals is not None
    assert read_totals(path, newest=False) == totals


@pytest.mark.parametrize("table", ["totals", "lost"])
def test_a_repair_says_what_of_the_gpu_time_by_day_it_lost(path: Path, table: str) -> None:
    written(path, facts(10))
    keeper(path).keep()
    size, days, day_s = 4096, 25, 86400.0
    with closing(sqlite3.connect(path)) as db:
        for day, user in ((day, f"u{n:02d}{'x' * 80}") for day in range(1, days + 1) for n in range(20)):
            db.execute("INSERT INTO totals VALUES (?, ?, 'q', 'T4', 'k', 0, 0, 1, 1, 1, 0, 0)", (day, user))
            db.execute("INSERT INTO lost VALUES (?, ?, 'q', 'T4', 'k', 'unknown', 1)", (day, user))
        db.execute("INSERT INTO covered VALUES (?, ?)", (day_s, (days + 1) * day_s))
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    raw = bytearray(path.read_bytes())
    page = raw[(root - 1) * size : root * size]  # SQLite file format, section 1.6
    child = int.from_bytes(page[int.from_bytes(page[18:20]) :][:4])
    raw[(child - 1) * size : child * size] = b"\xff" * size
    path.write_bytes(raw)
    done = repair_journal(path)
    assert check_journal(path)["problems"] == []
    found = read_totals(path, newest=False)
    assert found is not None
    assert len(done) == 2
    if table == "lost":
        assert re.search(r"only \d+ rows of `lost` could be read: keep journal-damaged", done[1])
        assert found.covered[-1] == (day_s, (days + 1) * day_s), "the time that was lost is known, its cause is not"
        assert len(found.rows) > 20 * days
    else:
        rows = [key for key, tally in found.rows.items() if tally.held_gpu_s]
        assert f"only {len(rows)} rows of `totals` could be read: keep journal-damaged" in done[1]
        gaps = without(found.covered, day_s, (days + 1) * day_s)
        whole = [day for day in range(1, days + 1) if sum(key[0] == day for key in rows) == 20]
        assert 0 < len(whole) < days
        torn = {*range(1, days + 1)} - {*whole}
        assert torn <= {day for a, b in gaps for day in range(int(a // day_s), int(b // day_s))}


def test_a_checkpoint_that_a_full_disk_cut_off_loses_nothing(path: Path) -> None:
    """Only its first page was written, which has the new size; all is in the WAL still."""
    wal, journal = path.with_name(path.name + "-wal"), SqliteJournal(path)
    journal.append(facts(400), 1.0)
    before, in_wal = path.read_bytes(), wal.read_bytes()
    journal.close()
    path.write_bytes(path.read_bytes()[:4096] + before[4096:])
    wal.write_bytes(in_wal)
    assert (check_journal(path)["problems"], check_journal(path)["readable"]) == ([], True)
    assert repair_journal(path) == []
    assert check_journal(path)["facts"] == len(facts(400))


def test_a_journal_in_use_is_not_repaired(path: Path) -> None:
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="another control plane holds this journal"):
        repair_journal(path)
    journal.close()


def flip(path: Path, text: bytes) -> None:
    """Sets the high bit of the first byte of a text in the file."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 0x80
    path.write_bytes(data)


def many(path: Path, count: int = 20) -> None:
    """Arrivals and measurements in turn."""
    journal = SqliteJournal(path)
    for k in range(count):
        app_id = f"application_1_{k:04d}"
        arrived = AppArrived(app_id, "the-name", "root.a", "alice", "job", 1.0, 2.0)
        journal.append([arrived, AllocationChanged(app_id, "the-job", 1.0, 3.0)], 1000.0 + k)
    journal.close()


def test_a_flipped_bit_is_found_by_the_checksum_and_a_measurement_is_set_aside(path: Path) -> None:
    many(path)
    flip(path, b"the-job")
    assert check_journal(path)["readable"]
    journal = SqliteJournal(path)
    assert len(journal.recover().apps) == 20
    assert len(journal.set_aside) == 1
    assert "AllocationChanged) is damaged: its checksum is wrong" in journal.set_aside[0]
    journal.close()


def test_a_flipped_bit_in_a_fact_that_counts_can_be_repaired(path: Path) -> None:
    many(path)
    flip(path, b"the-name")
    report = check_journal(path)
    assert not report["readable"]
    assert any("its checksum is wrong" in line for line in report["problems"])
    assert any("are set aside" in line for line in repair_journal(path))
    journal = SqliteJournal(path)
    assert len(journal.recover().apps) < 20
    journal.close()


def test_rows_that_are_missing_behind_a_damaged_row_are_noticed(path: Path) -> None:
    many(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE facts SET data = 'x' WHERE seq = 10")  # a measurement, which the next start sets aside
        db.commit()
    journal = SqliteJournal(path)
    journal.recover()
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM facts WHERE seq BETWEEN 11 AND 20")
        db.commit()
    assert not check_journal(path)["readable"]
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match=r"row 11 \(no kind\) is missing"):
        journal.recover()
    journal.close()
    repair_journal(path)
    assert check_journal(path)["readable"]
    assert len(list(read_facts(path))) == 9, "the gap is marked, so audits read what there is"


@pytest.mark.parametrize("value", ["x", "", "1e9", b"\xff"])
@pytest.mark.parametrize("key", ["epoch", "version"])
def test_damage_to_the_journals_own_numbers_is_one_sentence(path: Path, key: str, value: object) -> None:
    many(path, 2)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
        db.commit()
    with pytest.raises(JournalError, match=path.name):
        SqliteJournal(path)
    with suppress(JournalError):
        check_journal(path)
    with suppress(JournalError):
        repair_journal(path)
    assert sorted(f.name for f in path.parent.iterdir() if f.name.startswith(".")) == []


def test_a_full_disk_is_one_line_with_the_path(path: Path) -> None:
    journal = SqliteJournal(path)
    pages = journal.db.execute("PRAGMA page_count").fetchone()[0]
    journal.db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError, match=rf"^{path}: the disk is full; free some space in {path.parent}"):
        journal.append(facts(400), 1000.0)
    journal.close()


def test_what_accounts_used_outlives_pruning_and_a_failover(path: Path) -> None:
    """The journal keeps no fact of the uses but its snapshot; then another control plane takes over."""
    m = Mini()
    m.send(ev.OperatorCommand(SET_LIMITS, "user u", "root", values={"gpu_hours_month": 1.0}))
    m.start_app("a", gang=4, after_s=5)
    m.run(100)
    for container in list(m.a.cluster.containers):
        m.send(ev.ContainerGone(container))
    m.send(ev.AppRemoved("a", "FINISHED"))
    used = [x.used for x in m.a.holdings.limits.levels("user u", m.now)]
    assert used == [pytest.approx(4 * 100 / 3600, rel=0.05)]
    journal = SqliteJournal(path)
    journal.append(m.facts, m.now)
    for _ in range(3):  # facts after the last snapshot but one stay
        keeper(path, m.now).keep()
        journal.append([ClockBehind(m.now)], m.now)
    keeper(path, m.now + 1e6, 1.0).keep()
    journal.close()
    assert not any(isinstance(fact, LimitsSet | LeaseStarted) for _, _, fact in read_facts(path))
    pruned = SqliteJournal(path)
    durable = pruned.recover()
    pruned.close()
    other = Mini(durable=Durable())
    other.now = m.now
    other.send(ev.StandbyRestored(json.loads(json.dumps(durable.kept()))))
    for a in (Mini(durable=durable).a, other.a):
        assert [x.used for x in a.holdings.limits.levels("user u", m.now)] == used
