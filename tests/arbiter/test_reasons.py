"""The closed list of reasons."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid
from pycontrol.model.reasons import SENTENCES
from pycontrol.queries import pending_reasons
from pycontrol.queries.pending_reasons import Reasons, reason
from tests.arbiter.mini import Mini

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_operators_list_has_every_reason_and_no_other() -> None:
    text = OPERATIONS.read_text().partition("## Why an app waits")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(SENTENCES)


class NoBid(Mini):
    """Agents answer an offer with a bid for nothing, since a start takes 45 s."""

    def send(self, event: ev.Event) -> None:
        if isinstance(event, ev.BidReceived):
            event = dataclasses.replace(event, bid=Bid(event.app_id, 5.0, (), 45.0))
        super().send(event)


@pytest.mark.parametrize("policy", ["themis", "worst_first"])
def test_an_app_that_bids_nothing_gets_that_reason(policy: str) -> None:
    m = NoBid(policy, Settings(lease_s=30, recovery_s=0, last_pass=False))
    m.app("a")
    m.run(5)
    assert reason(m.a, "a", m.now).sentence.startswith(
        "it bid for none of the GPUs on offer: a start would cost it 45 s, the lease is 30 s"
    )


@pytest.mark.parametrize("policy", ["themis", "worst_first"])
def test_an_app_that_bids_nothing_on_an_idle_cluster_is_served_nevertheless(policy: str) -> None:
    """It wants GPUs that no other app wants; without this rule it would never start."""
    m = NoBid(policy, Settings(lease_s=30, recovery_s=0))
    m.app("a")
    m.run(5)
    assert m.a.holdings.holding("a") > 0
    assert any("idle otherwise" in r.done.why.get("a", "") for r in m.a.receipts)


def test_whether_all_machines_hold_a_gang_is_asked_once_for_apps_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view of 2,000 apps on 1,250 machines took 2 s, nearly all of it for this."""
    m = Mini("tiresias", Settings(lease_s=30, recovery_s=0))
    for app_id in "abcdef":
        m.app(app_id)
    m.run(5)
    asked: list[int] = []
    before = pending_reasons.too_large
    monkeypatch.setattr(pending_reasons, "too_large", lambda d, *rest: asked.append(d.gang_gpus) or before(d, *rest))
    why = Reasons(m.a, m.now)
    assert len({why.of(app_id).code for app_id in "abcdef"}) > 1
    assert len(asked) == 1
