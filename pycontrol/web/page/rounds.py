"""A round's receipt, as the page tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pycontrol.web.page import text
from pycontrol.words import count


def lived(receipt: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """One receipt: a line, and its parts in full."""

    def name(app_id: str) -> str:
        return names.get(app_id, app_id)

    whose = {gpu: app_id for app_id, gpus in receipt["ending"].items() for gpu in gpus}
    renewed = [{"app_id": whose.get(gpu, ""), "gpu": gpu} for gpu in receipt.get("renewed", ())]
    changes = {
        "granted": _by_app(receipt.get("granted", ())),
        "renewed": _by_app(renewed),
        "revoked": _by_app(receipt.get("revoked", ())),
    }
    bids = [
        {
            "app_id": b["app_id"], "name": name(b["app_id"]), "rows": b["rows"], "rho_nothing": b["rho_nothing"],
            "won": sum(b["won"].values()), "rho_won": b["rho_won"], "c": b["c"], "kept": b["kept_gangs"],
            "paid": b["paid_gangs"],
        }
        for b in receipt.get("bids", ())
    ]  # fmt: skip
    why = receipt.get("why", {})
    awards = [
        {
            "app_id": x["app_id"],
            "name": name(x["app_id"]),
            "gangs": [text.gang(g) for g in x["gangs"]],
            "leftover": x["leftover"],
            "why": why.get(x["app_id"], ""),
        }
        for x in receipt.get("awards", ())
    ]
    return {
        "round_id": receipt["round_id"],
        "at_s": receipt["at_s"],
        "vc": receipt.get("vc", ""),
        "policy": receipt["policy"],
        "offered": sum(receipt["offered"].values()),
        "hosts": len(receipt["offered"]),
        "changes": {k: [{"name": name(a), "gpus": g} for a, g in v.items()] for k, v in changes.items()},
        "counts": {k: sum(map(len, v.values())) for k, v in changes.items()},
        "line": _line(changes, name),
        "bids": bids,
        "awards": awards,
        "boosted": [{"name": name(a), "by": by} for a, by in receipt.get("boosted", {}).items()],
        "out": [{"name": name(a), "why": why_out} for a, why_out in receipt["out"].items()],
        "note": receipt.get("note", ""),
        "solve_s": receipt.get("solve_s"),
        "proved": receipt.get("proved_optimal"),
    }


def _by_app(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["app_id"], []).append(str(row["gpu"]))
    return found


NAMED = 3
"""Apps of a kind that a line names."""


def _line(changes: Mapping[str, Mapping[str, list[str]]], name: Callable[[str], str]) -> str:
    parts = []
    for kind, word in (("granted", "to"), ("revoked", "back from")):
        apps = changes[kind]
        few = [f"{len(gpus)} {word} {name(app_id)}" for app_id, gpus in list(apps.items())[:NAMED]]
        if len(apps) > NAMED:
            few.append(f"{sum(map(len, list(apps.values())[NAMED:]))} {word} {count(len(apps) - NAMED, 'other')}")
        parts += [", ".join(few)] if few else []
    renewed = sum(map(len, changes["renewed"].values()))
    parts += [f"{renewed} renewed"] if renewed else []
    return "; ".join(parts) or "nothing moved"
