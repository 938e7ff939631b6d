"""Daily totals outlive the facts, count what no lease covers, and say what time they cover."""

import csv
import functools
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.audit.accounting import accounted, last_year, of_facts, of_totals
from pycontrol.cli import main
from pycontrol.fairness.use import DAY_S
from pycontrol.model import events as ev
from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.cluster import Container, Mode, ModeSwitch, Node, Queue, YarnApp
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu
from pycontrol.runtime.gpu_time import NUMBERS, Key, Tally, Usage, by_day
from pycontrol.runtime.journal import SqliteJournal, read_facts, read_totals
from pycontrol.runtime.journal_keeper import JournalKeeper
from tests.arbiter.mini import Mini
from tests.web.scene import Scene

DAY = 20_000 * DAY_S
"""Midnight (UTC) of 2024-10-04."""
A, B = Gpu("n1", 0), Gpu("n1", 1)
Timed = Sequence[tuple[float, f.Fact]]


SHIFTS = 0.0, DAY - 1050.0, DAY - 1101.5
"""So that midnight is outside the scene, or in its middle."""


@functools.cache
def busy() -> Timed:
    """Those of a busy scene with leases, revocations and borrowed GPUs, and containers outside leases."""
    scene = Scene(run_s=200)
    other = [
        (t, f.PlainUse("eve", "root.q", "plain", "V100", n, t)) for t, n in ((1010.0, 3), (1100.0, 1), (1150.5, 0))
    ]
    return sorted([*((t, fact) for _, t, fact in scene.kept.facts), *other], key=lambda x: x[0])


def appended(path: Path, facts: Timed) -> None:
    journal = SqliteJournal(path)
    for time_s, fact in facts:
        journal.append([fact], time_s)
    journal.close()


def keep(path: Path, now_s: float, retention_s: float = 1e12) -> None:
    JournalKeeper(path, retention_s, 1 << 40, lambda: now_s, rest_s=0.0).keep()


def folded(facts: Timed) -> dict[Any, Any]:
    found = Usage(0.0, float("inf"))
    found.read([(i, t, fact) for i, (t, fact) in enumerate(facts)])
    found.close(found.last_s)
    return by_day(found)


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(1, 10_000), min_size=1, max_size=5), shift=st.sampled_from(SHIFTS))
def test_totals_of_any_snapshots_are_those_of_all_facts(cuts: list[int], shift: float) -> None:
    """Wherever snapshots cut the journal, also on both sides of midnight, and whatever is pruned."""
    moved = [(t + shift, moved_by(fact, shift)) for t, fact in busy()]
    ends = sorted({1 + k % (len(moved) - 1) for k in cuts})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        for begin, end in zip([0, *ends], [*ends, len(moved)], strict=True):
            appended(path, moved[begin:end])
            if end < len(moved):
                keep(path, 1e12, 1.0)
        found = read_totals(path)
    assert found is not None
    expected, rows, seen = typeless(folded(moved)), typeless(found.rows), set[str]()
    assert rows.keys() == expected.keys()
    for key, tally in expected.items():
        assert [getattr(rows[key], x) for x in NUMBERS] == pytest.approx([getattr(tally, x) for x in NUMBERS], abs=1e-6)
        assert rows[key].causes == pytest.approx(tally.causes, abs=1e-6), key
        seen |= {*tally.causes}
    assert seen


def typeless(rows: Mapping[Key, Tally]) -> dict[Any, Tally]:
    """Summed over types: that of a lease is known once its container starts, which may be after the cut."""
    found: dict[Any, Tally] = {}
    for (day, user, queue, _, kind), tally in rows.items():
        found[day, user, queue, kind] = found.get((day, user, queue, kind), Tally()) + tally
    return found


def moved_by(fact: f.Fact, shift: float) -> f.Fact:
    """The same fact, so much later."""
    times = ("at_s", "end_s", "submitted_s", "since_s")
    return replace(fact, **{name: getattr(fact, name) + shift for name in times if hasattr(fact, name)})


# ---- what no lease covers


def container(name: str, gpus: int, plain: bool = False) -> Container:
    at = tuple(Gpu("n1", i) for i in range(gpus)) if plain else ()
    return Container(name, "a", "n1:1", at, gpu_count=gpus, plain=plain)


def seen(mode: Mode, *containers: Container) -> ev.ClusterSnapshot:
    node, app = Node("n1:1", "n1", "r", 8, attributes={"gpu_type": "V100"}), YarnApp("a", "ann", "root.q", "shell")
    switch = ModeSwitch(mode)
    if mode is Mode.OFF:
        return ev.ClusterSnapshot(False, (), (), (), (), (), switch=switch)
    return ev.ClusterSnapshot(mode is Mode.ON, (node,), (app,), (), containers, (Queue("root.q"),), switch=switch)


def told(m: Mini, since: int) -> list[f.Fact]:
    return [x for x in m.facts[since:] if isinstance(x, f.PlainUse | f.Watched)]


@pytest.mark.parametrize(
    ("mode", "plain", "kind"),
    [
        (Mode.SHADOW, False, "watched"),
        (Mode.SHADOW, True, "watched"),
        (Mode.ON, True, "plain"),
        (Mode.ON, False, "plain"),
    ],
)
def test_containers_outside_leases_are_counted_as_they_come_and_go(mode: Mode, plain: bool, kind: str) -> None:
    m = Mini()
    m.send(seen(mode, container("c1", 2, plain)))
    began_s = m.now
    assert told(m, 0)[-1] == f.PlainUse("ann", "root.q", kind, "V100", 2, began_s)
    m.run(10)
    more = container("c2", 1) if not plain else Container("c2", "a", "n1:1", (Gpu("n1", 5),), gpu_count=1, plain=True)
    m.send(ev.ContainerUp(more, True))
    assert told(m, 0)[-1] == f.PlainUse("ann", "root.q", kind, "V100", 3, m.now)
    m.run(10)
    m.send(ev.ContainerGone("c1"))
    m.send(ev.ContainerGone("c2"))
    assert told(m, 0)[-1] == f.PlainUse("ann", "root.q", kind, "V100", 0, m.now)
    assert m.a.durable.plain == {}


def test_a_restart_and_mode_off_end_what_is_no_longer_seen() -> None:
    m = Mini()
    m.send(seen(Mode.SHADOW, container("c1", 2)))
    again = Mini(durable=m.a.durable)
    again.send(seen(Mode.SHADOW, container("c2", 1)))
    assert [x.count for x in told(again, 0) if isinstance(x, f.PlainUse)] == [1]
    watched_s = again.now
    again.now += 1000.0
    again.send(ev.ClusterTime(again.now))
    again.now += 10.0
    again.send(seen(Mode.OFF))
    again.now += 1000.0
    again.send(ev.ClusterTime(again.now))
    assert [(x.since_s - watched_s, x.at_s - watched_s) for x in told(again, 0) if isinstance(x, f.Watched)] == [
        (0.0, 1000.0),
        (1000.0, 1010.0),
    ]
    assert again.a.durable.plain == {}


@pytest.mark.parametrize("left", [0, 8])
@pytest.mark.parametrize("cut", [None, 1, 2, 3])
def test_what_no_lease_covers_is_not_counted_in_a_gap(left: int, cut: int | None, tmp_path: Path) -> None:
    """The control plane is away for two days: a container ended meanwhile, or runs on."""
    hour, path = 3600.0, tmp_path / "journal.sqlite"
    use = functools.partial(f.PlainUse, "ann", "root.q", "plain", "V100")
    facts: list[tuple[float, f.Fact]]
    facts = [(DAY, use(8, DAY)), (DAY + hour, f.Watched(DAY, DAY + hour)), (DAY + 49 * hour, f.ClockBehind(0.0))]
    facts += [(DAY + 49 * hour, use(0, DAY + 49 * hour))] if not left else []
    facts.append((DAY + 50 * hour, f.Watched(DAY + 49 * hour, DAY + 50 * hour)))
    for part in [facts] if cut is None else [facts[:cut], facts[cut:]]:
        appended(path, part)
        keep(path, 1e12)
    totals = read_totals(path)
    assert totals is not None
    for found in (totals.rows, folded(facts)):
        assert sum(t.used_gpu_s for t in found.values()) == (8 + left) * hour


def test_what_no_lease_covers_ends_with_its_control_planes_journal() -> None:
    """Who took over tells of all containers that it sees, not of those that it never saw."""
    hour, plain = 3600.0, f.PlainUse("ann", "root.q", "plain", "V100", 8, DAY)
    first: list[tuple[int, float, f.Fact]] = [(1, DAY, plain), (2, DAY + hour, f.Watched(DAY, DAY + hour))]
    second = [(k, DAY + k * hour, f.Watched(DAY + (k - 1) * hour, DAY + k * hour)) for k in range(2, 100)]
    found = accounted(of_facts([iter(first), iter(second)], DAY, DAY + 99 * hour), ["user"])
    assert [(r["user"], r["gpu_h_used"]) for r in found["rows"]] == [("ann", 8.0)]


# ---- the command


def month_of_use() -> Timed:
    """One app with 2 GPUs for 36 hours over the end of September, containers outside leases for an hour."""
    t = DAY - 12 * 3600
    return [
        (t, f.AppArrived("a", "train", "root.q", "ann", "job", t, t)),
        (t, f.LeaseGranted((A, B), "a", "g1", t, t + 10 * DAY_S)),
        (t, f.LeaseStarted((A, B), "c1", "j1", t, t + 10 * DAY_S, gpu_type="V100")),
        (t, f.PlainUse("eve", "root.p", "plain", "T4", 1, t)),
        (t + 3600, f.PlainUse("eve", "root.p", "plain", "T4", 0, t + 3600)),
        (t + 3600, f.Watched(t, t + 3600)),
        (t + 12 * 3600, f.Watched(t + 10 * 3600, t + 12 * 3600)),
        (t + 36 * 3600, f.LeaseEnded((A, B), t + 36 * 3600, "released", EndReason.RELEASED)),
        (t + 36 * 3600, f.Watched(t + 12 * 3600, t + 36 * 3600)),
    ]


@pytest.fixture
def pruned(tmp_path: Path) -> Path:
    """A journal whose facts of that time are gone."""
    path = tmp_path / "journal.sqlite"
    appended(path, month_of_use())
    for k in range(3):
        keep(path, DAY + 5 * DAY_S + k)
        appended(path, [(DAY + 5 * DAY_S + k, f.ClockBehind(float(k)))])
    keep(path, DAY + 90 * DAY_S, 1.0)
    assert not any(isinstance(fact, f.AppArrived) for _, _, fact in read_facts(path))
    return path


def run(path: Path, *args: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["usage", "--journal", str(path), *args])
    assert result.exit_code == code, result.output
    return str(result.output if code else result.stdout)


def test_use_is_known_by_day_after_its_facts_are_gone(pruned: Path) -> None:
    at = ("--since", "2024-10-01", "--until", "2024-10-10")
    found = json.loads(run(pruned, *at, "--by", "day,kind,type", "-o", "json"))
    hours = {(r["day"], r["kind"], r["type"]): r["gpu_h_used"] for r in found["rows"] if r["kind"]}
    assert hours == {
        ("2024-10-03", "job", "V100"): 24.0,
        ("2024-10-03", "plain", "T4"): 1.0,
        ("2024-10-04", "job", "V100"): 48.0,
    }
    assert (found["total"]["apps"], found["whole_days"]) == (1, True)
    rows = list(csv.DictReader(io.StringIO(run(pruned, *at, "--by", "month,user", "-o", "csv"))))
    assert [(r["month"], r["user"], r["gpu_h_used"]) for r in rows] == [
        ("2024-10", "ann", "72.0"),
        ("2024-10", "eve", "1.0"),
    ]
    assert "ann" in run(pruned, *at, "--by", "account,user")


def test_a_journal_that_was_set_aside_does_not_hide_what_the_present_one_has_dropped(pruned: Path) -> None:
    aside = pruned.with_name("journal-20240801T000000Z.sqlite")
    older = 60 * DAY_S
    appended(aside, [(t - older, moved_by(fact, -older)) for t, fact in month_of_use()])
    found = json.loads(run(pruned, "--journal", str(aside), "--since", "2024-10-01", "--by", "user", "-o", "json"))
    assert {r["user"]: r["gpu_h_used"] for r in found["rows"]} == {"ann": 72.0, "eve": 1.0}


def test_use_that_began_before_the_facts_is_counted_or_said_not_to_be(tmp_path: Path) -> None:
    path, t, facts = tmp_path / "journal.sqlite", DAY + 24 * 3600, month_of_use()
    again = f.LeaseGranted((A,), "a", "g2", t, t + DAY_S), f.LeaseStarted((A,), "c2", "j1", t, t + DAY_S, "V100")
    again += (f.AppArrived("c", "train", "root.q", "eve", "job", t, t),)
    for part in (facts[:6], facts[6:7], [*facts[7:], *((t, x) for x in again), (t + 3600, f.Watched(t, t + 3600))]):
        appended(path, part)
        keep(path, t, 26 * 3600)
    assert next(read_facts(path))[1] == DAY
    since = ("--since", "2024-10-04T00:00+00:00")
    found = json.loads(run(path, *since, "--by", "user", "-o", "json"))
    assert {r["user"]: r["gpu_h_used"] for r in found["rows"]} == {"ann": 49.0, "eve": 0.0}
    assert found["total"]["wait_median_s"] == 3600, "facts of this time are there"
    said = run(path, *since, "--by", "app")
    assert "3 facts are about leases or apps from before these: not counted" in said
    assert "no app had GPUs" not in said


def test_a_journal_without_a_snapshot_counts_beside_one_that_has_dropped_facts(pruned: Path) -> None:
    young, later = pruned.with_name("young.sqlite"), 6 * DAY_S
    appended(young, [(t + later, moved_by(fact, later)) for t, fact in month_of_use()])
    at = ("--journal", str(young), "--since", "2024-10-01", "--by", "user", "-o", "json")
    assert {r["user"]: r["gpu_h_used"] for r in json.loads(run(pruned, *at))["rows"]} == {"ann": 144.0, "eve": 2.0}


def test_journals_may_be_named_in_any_order(tmp_path: Path) -> None:
    facts = month_of_use()
    again = [(t + 10, moved_by(fact, 10.0)) for t, fact in facts[:3]]
    for name, part in (("first", facts[:3]), ("second", [*again, *facts[7:]])):
        appended(tmp_path / name, part)
    for one, other in (("first", "second"), ("second", "first")):
        at = ("--journal", str(tmp_path / other), "--since", "2024-10-01", "--by", "user", "-o", "json")
        assert json.loads(run(tmp_path / one, *at))["total"]["gpu_h_used"] == 72.0


@pytest.mark.parametrize("zone", ["CET-1", "EST5"])
def test_bills_of_adjoining_dates_have_no_day_in_common(
    pruned: Path, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hours(since: str, until: str) -> float:
        found = json.loads(run(pruned, "--since", since, "--until", until, "--by", "user", "-o", "json"))
        return float(found["total"]["gpu_h_used"])

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert hours("2024-10-01", "2024-10-04") == 25.0
        assert hours("2024-10-04", "2024-10-05") == 48.0
        assert hours("2024-10-01", "2024-10-05") == 73.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_table_says_what_it_covers_and_time_without_records_is_no_time_without_use(pruned: Path) -> None:
    text = run(pruned, "--since", "2024-09-01", "--until", "2024-10-10", "--by", "month")
    assert "covered: 2024-10-03" in text
    hours = run(pruned, "--since", "2024-10-04T06:00", "--until", "2024-10-04T12:00", "--by", "user")
    assert hours.startswith("covered: 2024-10-04 00:00:00 to 2024-10-05 00:00:00, whole days of UTC")
    assert "nothing is known from before" in text
    assert "in 2 gaps" in text
    assert "2024-10-03 " in text
    found = json.loads(run(pruned, "--since", "2024-09-01", "--until", "2024-10-10", "--by", "day", "-o", "json"))
    first = found["covered"]["from_s"]
    assert found["covered"]["gaps"][0] == [first + 3600, first + 10 * 3600]
    assert [(r["day"][-2:], r["covered_h"]) for r in found["rows"]] == [
        ("03", 3.0),
        ("04", 24.0),
        *((f"0{day}", 0.0) for day in range(5, 10)),
    ], "a day without records has a row, too"
    assert "no app had GPUs" not in run(pruned, "--since", "2024-08-01", "--until", "2024-09-01", code=1)
    assert "nothing is known" in run(pruned, "--since", "2024-08-01", "--until", "2024-09-01", code=1)
    assert "no app had GPUs in the time that is covered" in run(
        pruned, "--since", "2024-10-06", "--until", "2024-10-08"
    )


def test_accounts_have_the_use_below_them_and_prices_are_by_type() -> None:
    tree = Accounts(groups={}, users={"ann": ("research", "vision", "ann")})
    facts = [(i, t, fact) for i, (t, fact) in enumerate(month_of_use())]
    found = accounted(of_facts([facts], 0.0, DAY + 5 * DAY_S), ["account"], tree, {"V100": 2.5})
    assert [(r["account"], r["gpu_h_used"], r["cost"]) for r in found["rows"]] == [
        ("research", 72.0, 180.0),
        ("research/vision", 72.0, 180.0),
        ("root.p", 1.0, 0.0),
    ]
    assert (found["total"]["gpu_h_used"], found["total"]["cost"]) == (73.0, 180.0)
    assert found["without_price"] == ["T4"]


def test_a_running_control_plane_shows_a_year_of_its_own_and_older_journals(pruned: Path) -> None:
    aside = pruned.with_name("journal-20250101T000000Z.sqlite")
    pruned.rename(aside)
    young = pruned.with_name("young.sqlite")
    appended(young, month_of_use())
    assert last_year(young, ["user"], NO_ACCOUNTS, None) is None
    appended(pruned, [(DAY + 200 * DAY_S + k, f.ClockBehind(float(k))) for k in range(2)])
    keep(pruned, DAY + 200 * DAY_S)
    found = last_year(pruned, ["user"], NO_ACCOUNTS, {"V100": 1.0})
    assert found is not None
    assert [(r["user"], r["gpu_h_used"], r["cost"]) for r in found["rows"]] == [("ann", 72.0, 72.0), ("eve", 1.0, 0.0)]


def test_totals_of_a_pair_add_up(tmp_path: Path) -> None:
    """Two control planes, one after the other."""
    both = []
    for k, name in enumerate(("first", "second")):
        path = tmp_path / f"{name}.sqlite"
        later = [(t + k * 2 * DAY_S, moved_by(fact, k * 2 * DAY_S)) for t, fact in month_of_use()]
        appended(path, later)
        keep(path, 1e12)
        both.append(read_totals(path))
    found = accounted(of_totals([x for x in both if x is not None], DAY - DAY_S, DAY + 9 * DAY_S), ["user"])
    assert {r["user"]: r["gpu_h_used"] for r in found["rows"]} == {"ann": 144.0, "eve": 2.0}


def test_after_a_takeover_time_has_its_type_and_running_apps_are_not_counted_again() -> None:
    nodes = (Node("n1:1", "n1", "r", 8, attributes={"gpu_type": "V100"}),)
    first = Mini(nodes=[("n1", 8)], durable=Durable())
    first.nodes = nodes
    first.send(first.snapshot())
    first.start_app("a", 2)
    first.run(100, 1.0)
    second = Mini(nodes=[("n1", 8)], durable=Durable())
    second.nodes, second.now = nodes, first.now
    second.send(ev.StandbyRestored(first.a.durable.kept(), 5))
    cluster = first.a.cluster
    second.send(second.snapshot(cluster.apps.values(), cluster.containers.values()))
    second.run(100, 1.0)
    found = folded([(second.now, fact) for fact in second.facts])
    assert {key[3]: (t.apps, t.wait_s, t.used_gpu_s > 0) for key, t in found.items()} == {"V100": (0, 0.0, True)}
