"""Five apps wait on a full cluster: what each is told of its reason and its start, against what the next rounds do.

About seven minutes, so not a part of `make test`: `make policy-test`. CI checks reasons on the fault world
(tests/faults/test_reasons.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import Rig, slowness, submit_script

pytestmark = [pytest.mark.policies, pytest.mark.timeout(1800)]

HOLDERS = {"h1": (4, 330), "h2": (4, 400), "h3": (2, 300), "h4": (2, 360)}
WAITING = {"w1": (4, 25), "w2": (2, 40), "w3": (1, 30), "w4": (4, 35), "w5": (2, 20)}
"""Name -> GPUs, and epochs of a second."""
SCRIPT = """
import sys, time
for epoch in range(1, int(sys.argv[1]) + 1):
    time.sleep(1)
    print(f"Epoch {epoch}/{sys.argv[1]}, loss: {1 / epoch:.4f}", flush=True)
"""
LOOK_S = 1.0
LIMIT_S = 900.0
IN_RANGE = 0.8
SLACK_S = 2.0
"""How late a look may be."""
STARTS_S = 15.0
"""How long the last app's container takes to start."""
TO_START = {"NoFreeGpus", "WaitingForRound", "Outranked", "WaitingForRevocation", "Starting"}


class LongLeases(Rig):
    """A forecast takes half a minute or more, so that waits must be longer."""

    settings = ("isonomy.lease_s=120", "isonomy.f=0.3", "isonomy.grant_timeout_s=60", "isonomy.round_retry_s=3")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = LongLeases(tmp_path / "dc", "isonomy")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.down()


class Told:
    """What waiting apps were told, look by look."""

    def __init__(self, get: Callable[..., Mapping[str, Any]], names: Collection[str]) -> None:
        self._get, self._names = get, names
        self.looks: list[tuple[float, set[str], dict[str, tuple[str, str]]]] = []
        """Time, leased GPUs, and by app that has none: code and sentence."""
        self.ranges: dict[str, list[tuple[float, tuple[float, float, float]]]] = {}
        """App -> each forecast of its start, with when it was made."""
        self.started_s: dict[str, float] = {}
        self.ids: dict[str, str] = {}

    def look(self) -> bool:
        """One look at the queue and the GPUs; whether all apps have started."""
        leases, queue = self._get("leases"), self._get("queue")  # in this order: no lease ends before what is told
        if not leases or not queue:
            return False
        leased = {x["gpu"] for x in leases["leases"]}
        said: dict[str, tuple[str, str]] = {}
        for row in queue["apps"]:
            name = row["name"]
            if name not in self._names:
                continue
            self.ids[row["app_id"]] = name
            if row["gpus_held"]:
                self.started_s.setdefault(name, queue["now_s"])
            elif name not in self.started_s and row["reason"] != "Unknown":  # then it has not asked yet
                said[name] = row["reason"], row["sentence"]
                made_s = queue["forecast"]["made_s"]
                known = self.ranges.setdefault(name, [])
                if row["start_s"] and row["start_s"][1] is not None and (not known or known[-1][0] < made_s):
                    known.append((made_s, tuple(row["start_s"])))
        self.looks.append((queue["now_s"], leased, said))
        return len(self.started_s) == len(self._names)

    def contradicted(self) -> tuple[Counter[str], list[str]]:
        """The reasons that the next round confirmed, and those that it did not: the round after each look."""
        rounds = sorted(self._get("rounds", n="200")["rounds"], key=lambda r: r["at_s"])
        confirmed, wrong = Counter[str](), list[str]()
        for at_s, leased, said in self.looks:
            held = next((r for r in rounds if r["at_s"] > at_s), None)
            for name, (code, sentence) in said.items() if held is not None else ():
                mine = {g["gpu"] for g in held["granted"] if self.ids.get(g["app_id"]) == name}
                others = [g for g in held["granted"] if self.ids.get(g["app_id"]) != name]
                gave = mine or others or held["renewed"] or held["note"]
                in_s = held["at_s"] - at_s
                problem = ""
                if code not in TO_START:
                    problem = "is a reason of no waiting app here"
                elif code == "NoFreeGpus" and mine and not mine & leased and in_s <= LOOK_S + SLACK_S:
                    problem = f"it got {sorted(mine)}, which were free"
                elif code == "WaitingForRound" and (in_s > (LOOK_S + SLACK_S) * slowness() or not gave):
                    problem = f"the next round came {in_s:.0f} s later and gave nobody anything"
                if problem:
                    wrong.append(f"{name} was told {code} ({sentence}), but {problem}")
                confirmed[code] += not problem
        return confirmed, wrong

    def starts(self) -> None:
        """Sets when the apps' first leases started: a look sees an app with GPUs before its container runs."""
        for name in self.started_s:
            leases = self._get("spans", app=name)["leases"]
            self.started_s[name] = min(x["started_s"] for x in leases if x["started_s"])

    def in_range(self) -> list[tuple[str, float, tuple[float, float, float], bool]]:
        """(app, seconds ahead, the range from now on, whether the start fell into it) of each forecast of a start."""
        found = []
        for name, told in self.ranges.items():
            for made_s, (low, middle, high) in told:
                start_s = self.started_s[name]
                inside = low - SLACK_S <= start_s and (high is None or start_s <= high + SLACK_S)
                found.append((name, start_s - made_s, (low - made_s, middle - made_s, (high or 1e9) - made_s), inside))
        return found


def play(get: Callable[..., Mapping[str, Any]], script: Path) -> Told:
    """Submits the apps that fill the cluster, then those that wait, and looks until all of these have started."""

    for name, (gpus, epochs) in HOLDERS.items():
        submit_script(f"python {script.name} {epochs}", name, script, gpus)
    begin_s = time.monotonic()
    while sum(r["gpus_held"] for r in get("queue").get("apps", ())) < 12:
        assert time.monotonic() - begin_s < LIMIT_S, "the cluster is full"
        time.sleep(LOOK_S)
    while not any(r["end_s"] for r in get("queue")["apps"]):
        assert time.monotonic() - begin_s < LIMIT_S, "ends are foreseen"
        time.sleep(LOOK_S)
    told = Told(get, WAITING)
    for name, (gpus, epochs) in WAITING.items():
        submit_script(f"python {script.name} {epochs}", name, script, gpus)
        told.look()
    while not told.look():
        assert time.monotonic() - begin_s < LIMIT_S, f"all start, but only {sorted(told.started_s)} did"
        time.sleep(LOOK_S)
    time.sleep(STARTS_S)
    told.starts()
    return told


def test_every_reason_holds_and_most_starts_lie_in_their_range(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "epochs.py"
    script.write_text(SCRIPT)
    told = play(rig.get, script)
    confirmed, wrong = told.contradicted()
    assert not wrong, "\n".join(wrong[:10])
    assert confirmed["NoFreeGpus"] > 10
    starts = told.in_range()
    assert len(starts) >= len(WAITING), "there were forecasts"
    assert sum(inside for *_, inside in starts) >= IN_RANGE * len(starts), starts
