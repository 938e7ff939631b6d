"""Usage agrees with the containers' times, GPU-second by GPU-second."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.audit.accounting import accounted, of_facts
from pycontrol.cli import main
from pycontrol.cli.client import Misused, moment_s
from pycontrol.fairness.use import DAY_S
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.runtime.spans import Journal
from tests.web.scene import Scene

A, B = Gpu("n1", 0), Gpu("n1", 1)


def usage(journals: Sequence[Journal], by: Sequence[str], since_s: float, until_s: float) -> dict[str, Any]:
    return accounted(of_facts(journals, since_s, until_s), by)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene(run_s=200)


def attained(scene: Scene) -> dict[str, float]:
    a = scene.world.arbiter
    return {x: a.durable.attained_gpu_s(x, scene.world.now) for x in a.durable.apps}


def test_the_gpu_time_equals_that_of_the_containers(scene: Scene) -> None:
    found = usage([scene.kept.facts], ["app"], 0.0, scene.world.now)
    rows = {row["app"]: row for row in found["rows"]}
    for app_id, gpu_s in attained(scene).items():
        assert rows[app_id]["gpu_h_used"] * 3600 == pytest.approx(gpu_s, abs=0.5)
        assert rows[app_id]["revocations"] == scene.world.arbiter.durable.apps[app_id].revocations
    assert found["total"]["gpu_h_used"] == pytest.approx(sum(r["gpu_h_used"] for r in found["rows"]), abs=0.001)
    assert found["unknown_facts"] == 0


def test_parts_of_the_time_add_up(scene: Scene) -> None:
    end_s = scene.world.now
    cut_s = (1000.0 + end_s) / 2
    whole, first, second = (
        usage([scene.kept.facts], ["app"], since_s, until_s)["total"]
        for since_s, until_s in ((0.0, end_s), (0.0, cut_s), (cut_s, end_s))
    )
    for key in ("gpu_h_used", "gpu_h_unused", "gpu_h_lost", "revocations"):
        assert first[key] + second[key] == pytest.approx(whole[key], abs=0.001)


def test_lost_borrowed_and_waited_by_hand() -> None:
    facts: list[tuple[float, f.Fact]] = [
        (0, f.AppArrived("a", "=cmd", "root.q", "ann", "job", 0.0, 10.0, "")),
        (100, f.LeaseGranted((A,), "a", "g1", 100.0, 700.0)),
        (110, f.LeaseStarted((A,), "c1", "j1", 110.0, 700.0)),
        (140, f.AllocationChanged("a", "j1", 140.0, 40.0)),  # the first launch does not count as a loss
        (600, f.LeaseRevoking((A,), 660.0, "lost round r1", "lost_round")),
        (620, f.LeaseIdle((A,), 620.0)),
        (621, f.LeaseEnded((A,), 621.0, "revoked", "lost_round")),
        (700, f.LeaseGranted((B,), "a", "g2", 700.0, 1300.0, guaranteed=False)),
        (705, f.LeaseStarted((B,), "c2", "j1", 705.0, 1300.0)),
        (730, f.AllocationChanged("a", "j1", 730.0, 30.0)),
        (900, f.LeaseEnded((B,), 900.0, "released", "released")),
        (950, f.LeaseIdle((A,), 950.0)),  # of a lease that was never granted
    ]
    total = usage([[(i, t, fact) for i, (t, fact) in enumerate(facts)]], ["user"], 0.0, 1000.0)
    row = total["rows"][0]
    assert row["user"] == "ann"
    assert row["gpu_h_used"] * 3600 == pytest.approx(510 + 195, abs=0.5)
    assert row["gpu_h_unused"] * 3600 == pytest.approx(10 + 1 + 5, abs=0.5)
    assert row["gpu_h_lost"] * 3600 == pytest.approx(20 + 30, abs=0.5)
    assert row["gpu_h_lost_by"] == {"lost_round": pytest.approx(50 / 3600, abs=1e-4)}
    assert row["gpu_h_borrowed"] * 3600 == pytest.approx(200, abs=0.5)
    assert (row["revocations"], row["wait_median_s"]) == (1, 110.0)
    assert total["unknown_facts"] == 1
    assert usage([], ["user"], 0.0, 1.0)["rows"] == []


def test_apps_that_got_no_gpus_wait_in_each_time_until_they_end() -> None:
    facts: list[tuple[float, f.Fact]] = [
        (0.0, f.AppArrived("a", "", "q", "ann", "job", 0.0, 0.0)),
        (0.0, f.AppArrived("k", "", "q", "kim", "job", 0.0, 0.0)),
        (0.0, f.AppArrived("o", "", "q", "old", "job", 0.0, 0.0)),
        (DAY_S, f.AppEnded("o", "KILLED", DAY_S)),
        (2.5 * DAY_S, f.AppEnded("k", "KILLED", 2.5 * DAY_S)),
        (3 * DAY_S, f.Watched(0.0, 3 * DAY_S)),
    ]
    rows = [(i, t, x) for i, (t, x) in enumerate(facts)]
    found = usage([rows], ["day", "user"], 2 * DAY_S, 3 * DAY_S)["rows"]
    assert {(r["day"], r["user"]): (r["apps"], r["wait_h"]) for r in found} == {
        ("1970-01-03", "ann"): (1, 72.0),
        ("1970-01-03", "kim"): (1, 60.0),
    }


def test_apps_that_ran_before_a_takeover_are_not_known_to_have_waited() -> None:
    kept = Durable()
    for app_id in ("ran", "waits"):
        kept.apply(f.AppArrived(app_id, "", "q", app_id, "job", 100.0, 100.0))
    kept.apps["ran"].leases = 1
    facts = [(0, 500.0, f.Restored(kept.kept())), (1, 600.0, f.Watched(500.0, 600.0))]
    assert [(r["user"], r["wait_h"] * 3600) for r in usage([facts], ["user"], 0.0, 600.0)["rows"]] == [
        ("waits", pytest.approx(500.0, abs=0.5))
    ]


def test_leases_and_waits_that_are_open_end_with_the_records_of_a_control_plane_that_is_gone() -> None:
    facts = [
        (0.0, f.AppArrived("a", "", "q", "ann", "job", 0.0, 0.0)),
        (0.0, f.AppArrived("b", "", "q", "bob", "job", 0.0, 0.0)),
        (0.0, f.LeaseGranted((A,), "a", "g1", 0.0, 9e9)),
        (0.0, f.LeaseStarted((A,), "c1", "j1", 0.0, 9e9)),
        (3600.0, f.Watched(0.0, 3600.0)),
        (36000.0, f.Watched(35000.0, 36000.0)),
    ]
    rows = [(i, t, x) for i, (t, x) in enumerate(facts)]

    def hours(since_s: float, until_s: float, journal: Journal = rows) -> dict[str, tuple[float, float]]:
        found = usage([journal], ["user"], since_s, until_s)["rows"]
        return {row["user"]: (row["gpu_h_used"], row["wait_h"]) for row in found}

    assert hours(0.0, 36600.0) == {"ann": (round(36600 / 3600, 4), 0.0), "bob": (0.0, round(36600 / 3600, 4))}
    assert hours(0.0, 9e6) == {"ann": (10.0, 0.0), "bob": (0.0, 10.0)}
    assert hours(0.0, 18000.0)["ann"] == (5.0, 0.0), "a later fact is known"
    assert hours(0.0, 18000.0, rows[:-1])["ann"] == (1.0, 0.0)


@pytest.mark.parametrize(
    ("stop", "cause"),
    [
        (
            [f.LeaseRevoking((A,), 600.0, "r", EndReason.GUARANTEE), f.LeaseEnded((A,), 600.0, "", "lapsed")],
            "guarantee",
        ),
        ([f.LeaseEnded((A,), 600.0, "node n1 is lost", EndReason.NODE_LOST)], "node_lost"),
        ([f.LeaseEnded((A,), 600.0, "GPU n1:0 is bad", EndReason.BAD_GPU)], "bad_gpu"),
        ([f.LeaseIdle((A,), 600.0), f.LeaseEnded((A,), 601.0, "", EndReason.DRAINED)], "restart"),
        ([f.LeaseEnded((A,), 600.0, "", EndReason.RELEASED)], "restart"),
    ],
    ids=["called back", "machine lost", "GPU bad", "worker failed, then drained", "given back"],
)
def test_a_restart_counts_for_what_stopped_the_job_and_only_the_next_one(stop: list[f.Fact], cause: str) -> None:
    facts = [
        f.AppArrived("a", "", "q", "ann", "job", 0.0, 0.0),
        f.LeaseGranted((A,), "a", "g1", 0.0, 900.0),
        f.LeaseStarted((A,), "c1", "j1", 0.0, 900.0),
        f.AllocationChanged("a", "j1", 10.0, 10.0),
        *stop,
        f.LeaseGranted((B,), "a", "g2", 700.0, 900.0),
        f.LeaseStarted((B,), "c2", "j1", 700.0, 900.0),
        f.AllocationChanged("a", "j1", 720.0, 20.0),
        f.LeaseIdle((B,), 730.0),
        f.LeaseStarted((B,), "c3", "j1", 740.0, 900.0),
        f.AllocationChanged("a", "j1", 750.0, 5.0),
    ]
    rows = [(i, getattr(x, "at_s", 600.0), x) for i, x in enumerate(facts)]
    lost = usage([rows], ["user"], 0.0, 1000.0)["total"]["gpu_h_lost_by"]
    expected = {cause: 20.0, "restart": 5.0} if cause != "restart" else {"restart": 25.0}
    assert {k: h * 3600 for k, h in lost.items()} == pytest.approx(expected, abs=0.5)


def test_the_command_prints_tables_csv_and_json(tmp_path: Path, scene: Scene) -> None:
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    for _, time_s, fact in scene.kept.facts:
        journal.append([fact], time_s)
    journal.append([f.AppArrived("x", "=1+1", "root.q", "@mallory", "job", 1000.0, 1000.0, "")], scene.world.now)
    journal.close()
    at = ("--journal", str(tmp_path / "journal.sqlite"), "--since", "1970-01-02", "--until", "1971-01-01")

    def run(*args: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["usage", *at, *args])
        assert result.exit_code == code, result.output
        return str(result.stdout or result.stderr)

    with_times = ("--since", "1970-01-01T00:00+00:00", "--by", "user,queue")
    assert "in all" in (text := run(*with_times))
    assert "lost by cause: " in text
    rows = list(csv.DictReader(io.StringIO(run(*with_times, "-o", "csv"))))
    assert {row["user"] for row in rows} >= {"'@mallory"}
    assert sum(float(row["gpu_h_lost_lost_round"]) for row in rows) > 0
    assert json.loads(run(*with_times, "-o", "json"))["total"]["apps"] == len(scene.world.arbiter.durable.apps) + 1
    told = CliRunner().invoke(main, ["usage", *at, *with_times, "-o", "csv"]).stderr
    assert told.startswith("covered: 1970-01-01 "), "a table in a file says its coverage beside it"
    assert "must be some of" in run("--by", "colour", code=2)
    assert "is not before" in run("--since", "1980-01-01", code=2)
    before = ("--since", "1970-01-01T00:01+00:00", "--until", "1970-01-01T00:10+00:00")
    assert "nothing is known of" in run(*before, code=1)
    assert "the records begin 1970-01-01 " in run(*before, code=1)


def test_a_time_between_records_does_not_say_that_they_end_before_it(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    for day in (1, 2, 30):
        journal.append([f.AppArrived(f"a{day}", "", "q", "ann", "job", day * 86400.0, day * 86400.0)], day * 86400.0)
    journal.close()
    at = ("--since", "1970-01-10T00:00+00:00", "--until", "1970-01-20T00:00+00:00")
    result = CliRunner().invoke(main, ["usage", "--journal", str(tmp_path / "journal.sqlite"), *at])
    assert result.exit_code == 1
    assert "nothing is known of 1970-01-10 " in result.output
    assert "the records until then are of 1970-01-02 " in result.output


def test_times() -> None:
    assert moment_s("30d", 100 * 86400.0, "--since") == 70 * 86400.0
    assert moment_s("1.5h", 7200.0, "--since") == 1800.0
    with pytest.raises(Misused, match="must be as 30d"):
        moment_s("yesterday", 0.0, "--since")
