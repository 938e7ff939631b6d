"""A lie about rho is told in the receipt, in `explain` and by a metric, before and after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycontrol.fairness.bidding import app_work, rho_of
from pycontrol.fairness.gang_rho import PhaseWork
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, Contention
from pycontrol.policies.themis import Themis
from pycontrol.queries.explain import in_round
from pycontrol.queries.metrics import Metrics
from tests.arbiter.fake_agent import FakeAgent
from tests.arbiter.world import World

ALIKE = (1.0, 1.0, 1.0)


class Exact(FakeAgent):
    """An Agent with the true formula of rho, times a factor."""

    lie = 1.0

    def rho(self, gangs: int, c: Contention) -> float:
        left = tuple(self.work.values())
        elapsed_s, done = c.now_s - c.submitted_s, self.total - sum(left)
        work = app_work((PhaseWork(left),), self.gang_gpus, 4, c.cluster_gpus, c.n_avg, elapsed_s, done)
        return rho_of(work, [1.0] * gangs, c.lease_s) * self.lie

    def bid(self, e: ev.SendOffer) -> Bid:
        bid = super().bid(e)  # whose wider rows are a little worse, which S = 1 does not explain
        worse = [1 + 0.01 * (r.scope - 1) * r.new_gangs for r in bid.rows]
        return replace(bid, rows=tuple(replace(r, rho=r.rho / k) for r, k in zip(bid.rows, worse, strict=True)))


class Liar(Exact):
    """Says three times its rho."""

    lie = 3.0


class Told(World):
    """A world whose Agents tell the work left from which their rho follows."""

    def do_SendAskRho(self, e: ev.SendAskRho) -> None:
        agent = self.agent(e.app_id)
        if agent:
            kept = len(agent.held - set(e.ending)) // agent.gang_gpus
            rho, left = agent.rho(kept, e.contention), tuple(agent.work.values())
            said = ev.RhoReported(e.app_id, e.round_id, rho, agent.demand(), (left,), tuple(agent.work))
            self.at(0.01, lambda: self.submit(said))


def _world() -> Told:
    w = Told(Themis())
    wishes: dict[str, Any] = {"slowdown": ALIKE}
    w.add_app("honest", 2, 4, 800.0, of=Exact, **wishes)
    w.add_app("liar", 2, 4, 800.0, of=Liar, **wishes)
    w.add_app("other", 1, 4, 400.0, of=Exact, **wishes)
    return w


def _corrected(w: World) -> set[str]:
    return {app_id for r in w.arbiter.receipts for app_id in r.corrected}


def test_a_lie_is_corrected_and_told_before_and_after_a_crash() -> None:
    w = _world()
    w.run(60)
    assert _corrected(w) == {"liar"}
    receipt = next(r for r in w.arbiter.receipts if "liar" in r.corrected)
    assert "rho" in in_round(receipt, "liar")["corrected"]
    assert in_round(receipt, "honest")["corrected"] == ""
    said, used = (float(x) for x in receipt.corrected["liar"].split(";")[0].removeprefix("rho ").split(" -> "))
    assert abs(said / used - 3.0) < 0.2
    assert receipt.load(receipt.dump()).corrected == receipt.corrected
    metrics = Metrics()
    for fact in w.journal:
        metrics.observe(fact, w.now)
    expected = sum(len(r.corrected) for r in w.arbiter.receipts)
    assert metrics.registry.get_sample_value("isonomy_reports_corrected_total") == expected > 0
    w.crash()
    w.run(140)
    assert _corrected(w) == {"liar"}, "what the next control plane sees says the same"
