"""Records of ended apps do not pile up, and no record is dropped while it is needed."""

import pytest

from pycontrol.arbiter import apps
from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Node, YarnApp
from pycontrol.policies.registry import make

DAY_S = 86400.0


def arbiter(**settings: float) -> Arbiter:
    a = Arbiter(Settings(**settings), make("isonomy"))
    a.handle(ev.ClusterSnapshot(True, (Node("n1:1", "n1", "r", 8),), (), (), ()), 0.0)
    return a


def come(a: Arbiter, app_id: str, now_s: float) -> None:
    a.handle(ev.AppAdded(YarnApp(app_id, "u", "root.q", app_id, attempt_id=app_id)), now_s)
    a.handle(ev.AskChanged(Ask(app_id, app_id, 1, 99, 1)), now_s)


def go(a: Arbiter, app_id: str, now_s: float) -> None:
    a.handle(ev.AppRemoved(app_id, "FINISHED"), now_s)


def test_records_are_dropped_after_the_retention_time() -> None:
    a = arbiter(ended_apps_s=DAY_S)
    for k in range(10):
        come(a, f"a{k}", k * DAY_S / 4)
        go(a, f"a{k}", k * DAY_S / 4 + 60)
    assert list(a.durable.apps) == ["a6", "a7", "a8", "a9"], "those that ended less than a day ago"
    again = Durable()
    for fact in a.take_facts():
        again.apply(fact)
    assert again.dump() == a.durable.dump()
    assert list(Durable.load(a.durable.dump()).ended) == list(a.durable.ended)


def test_the_number_of_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "ENDED_APPS_MAX", 5)
    a = arbiter()
    for k in range(20):
        come(a, f"a{k}", k * 1000.0)
        go(a, f"a{k}", k * 1000.0 + 60)
    assert len(a.durable.apps) == 5
    for k in range(20, 30):
        come(a, f"a{k}", 20_000.0)
        go(a, f"a{k}", 20_000.0 + 60)
    assert len(a.durable.apps) == 10, "not within ten minutes of their end: somebody may want to see them"


def test_an_app_that_yarn_knows_is_not_forgotten() -> None:
    """Otherwise it would arrive again, as a new app, with its next ask."""
    a = arbiter(ended_apps_s=DAY_S)
    come(a, "a0", 0.0)
    apps.end(a.holdings, a.clerk, "a0", "", 10.0)
    come(a, "a1", 2 * DAY_S)
    go(a, "a1", 2 * DAY_S)
    assert "a0" in a.durable.apps
    go(a, "a0", 2 * DAY_S)
    come(a, "a2", 3 * DAY_S)
    go(a, "a2", 3 * DAY_S)
    assert "a0" not in a.durable.apps


@pytest.mark.interpreted
def test_no_state_remains_of_apps_that_came_and_went() -> None:
    """Every container of the Arbiter's own is as large after 300 apps as after 100."""

    def sizes(a: Arbiter) -> dict[str, int]:
        found = {f"state.{k}": len(v) for k, v in vars(a).items() if hasattr(v, "__len__")}
        found |= {f"durable.{k}": len(v) for k, v in vars(a.durable).items() if hasattr(v, "__len__")}
        return found

    a = arbiter(ended_apps_s=1000.0)
    seen = []
    for k in range(300):
        come(a, f"a{k}", k * 100.0)
        go(a, f"a{k}", k * 100.0 + 60)
        a.handle(ev.Tick(), k * 100.0 + 90)
        a.take_facts()
        if k in (99, 299):
            seen.append(sizes(a))
    assert seen[0] == seen[1]
