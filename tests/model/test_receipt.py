"""Receipts in JSON: REST, the CLI and the journal show them as version 0.1.0 did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.arbiter.ledger.facts import LeaseEnded, LeaseRevoking, RoundHeld, from_json, to_json
from pycontrol.model.reasons import EndReason, Pending, Reason, read_reason
from pycontrol.model.receipt import Granted, Outcome, Receipt, in_runs, runs_of
from pycontrol.model.topology import Gpu
from tests.arbiter.world import World

GOLDEN = json.loads((Path(__file__).parent / "receipts.json").read_text())
"""The receipts of `themis_world` from when they were dictionaries; `solve_s`, a measurement, is 0."""


def themis_world() -> World:
    """Bidders, a stand-in, an Agent that stops answering, an oversized gang, and more demand than GPUs."""
    w = World("themis", 3, lease_s=10, standin_revocable=False)
    w.add_app("app0", 2, 5, 160.0)
    w.add_foreign("plain", 1, 2)
    w.at(5.0, lambda: w.add_app("app1", 4, 3, 200.0))
    w.at(9.0, lambda: w.add_app("quiet", 2, 1, 50.0))
    w.at(9.0, lambda: setattr(w.agents["quiet"], "silent", True))
    w.at(12.0, lambda: w.add_app("huge", 64, 1, 50.0))
    w.run(60)
    w.arbiter.clerk.request_round(w.now)
    w.run(120)
    return w


def test_the_json_of_rounds_is_unchanged() -> None:
    said = [json.loads(json.dumps(r.dump() | {"solve_s": 0.0})) for r in themis_world().arbiter.receipts]
    for row in said:
        row.pop("unsaved_gpu_s", None)  # new in 0.3
        assert all(x.pop("why") == f"lost round {row['round_id']}" for x in row["revoked"])  # new in 0.3
    assert said == GOLDEN


@pytest.mark.parametrize("data", GOLDEN, ids=lambda r: str(r["round_id"]))
def test_a_receipt_survives_json(data: dict[str, Any]) -> None:
    receipt = Receipt.load(data)
    assert json.loads(json.dumps(receipt.dump())) == data
    fact = RoundHeld(receipt.round_id, receipt.at_s, receipt)
    assert from_json("RoundHeld", json.loads(json.dumps(to_json(fact)))) == fact


def test_an_aborted_round_has_no_outcome() -> None:
    receipt = Receipt("r1.1", 5.0, "themis", out={"a": Reason(Pending.LATE_RHO, "no rho")}, note="no plan")
    data = receipt.dump()
    assert {"bids", "awards", "granted", "solve_s"}.isdisjoint(data)
    assert data["out"] == {"a": "LateRho: no rho"}
    assert Receipt.load(data) == receipt
    assert not receipt.done.moved


HOSTS = st.from_regex(r"(gpu|10\.0\.0\.|r1-n)?[0-9]{0,3}", fullmatch=True)


@given(st.dictionaries(HOSTS, st.integers(1, 3)))
def test_a_stored_receipt_has_the_same_hosts_in_the_same_order(hosts: dict[str, int]) -> None:
    receipt = Receipt("r1.1", 5.0, "themis", offered=hosts, outcome=Outcome(unused_gpus=hosts))
    read = Receipt.load(json.loads(json.dumps(in_runs(receipt.dump()))))
    assert read == receipt
    assert list(read.offered.items()) == list(hosts.items())


def test_hosts_that_are_numbered_in_sequence_are_stored_as_one_run() -> None:
    hosts = {f"n{k:03}": 8 for k in range(8, 120)} | {"n120": 4, "n9": 8, "n10": 8, "login": 1}
    assert runs_of(hosts) == [("n", "008", 112, 8), ("n", "120", 1, 4), ("n", "9", 1, 8), ("n", "10", 1, 8),
                              ("login", "", 1, 1)]  # fmt: skip


def test_a_receipt_of_an_older_version_is_read_with_defaults() -> None:
    receipt = Receipt.load(
        {
            "round_id": "r1",
            "awards": [{"app_id": "a", "gangs": [[["n1", 2]]]}],
            "granted": [{"gpu": "n1:0", "app_id": "a"}],
        }
    )
    assert receipt.done.granted == (Granted(Gpu("n1", 0), "a"),)
    assert receipt.done.awards[0].gangs == ((("n1", 2),),)
    assert receipt.asked


@pytest.mark.parametrize(
    "damaged",
    [None, 5, {"awards": 5}, {"ending": {"a": ["n1"]}}, {"out": {"a": 5}}, {"offered": [["n", "1", 1 << 40, 8]]}],
)
def test_an_invalid_receipt_is_refused(damaged: Any) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        Receipt.load(damaged)


@pytest.mark.parametrize("code", list(Pending))
def test_a_reason_survives_json(code: Pending) -> None:
    reason = Reason(code, "n1: is full: wait")
    assert read_reason(str(reason)) == reason


def test_an_unknown_code_counts_as_that_of_a_bid() -> None:
    assert read_reason("Odd: a row") == Reason(Pending.BAD_BID, "a row")


@pytest.mark.parametrize(
    ("kind", "data", "cause"),
    [
        ("LeaseEnded", {"reason": "node n1 lost"}, EndReason.NODE_LOST),
        ("LeaseEnded", {"reason": "revoked"}, EndReason.UNKNOWN),
        ("LeaseEnded", {"reason": "revoked", "cause": "lost_round"}, EndReason.LOST_ROUND),
        ("LeaseRevoking", {"reason": "n1 is being drained", "cause": "drained", "end_s": 2.0}, EndReason.DRAINED),
        ("LeaseEnded", {"reason": "of a newer version", "cause": "eclipse"}, EndReason.UNKNOWN),
    ],
)
def test_causes_of_any_journal_are_in_the_list(kind: str, data: dict[str, Any], cause: EndReason) -> None:
    at = {} if kind == "LeaseRevoking" else {"at_s": 1.0}
    fact = from_json(kind, {"gpu": ["n1", 0], **at, **data})
    assert isinstance(fact, LeaseEnded | LeaseRevoking)
    assert fact.cause is cause
