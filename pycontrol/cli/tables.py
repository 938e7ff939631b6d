"""Tables for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def console() -> Console:
    """A console as wide as the terminal, wide enough for tables where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=170)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; numbers to the right."""
    result = Table(title=title or None, box=box.SIMPLE, title_justify="left", pad_edge=False)
    filled = [[show(v) for v in row] for row in rows]
    for i, name in enumerate(columns):
        numeric = bool(filled) and all(_numeric(r[i]) for r in filled)
        result.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in filled:
        result.add_row(*row)
    return result


def show(value: Any) -> str:
    """A cell's text."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return " ".join(f"{k}:{v}" for k, v in value.items()) or "-"
    return str(value)


def _numeric(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).isdigit()


def clock(at_s: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def status(d: dict[str, Any]) -> list[Any]:
    """`isonomy status`."""
    g = d["gpus"]
    state = "paused" if d["paused"] else "recovering" if d["recovering"] or not d["ready"] else "ready"
    head = (
        f"{state}: {g['leased']} of {g['total']} GPUs leased, {g['free']} free, {g['revoking']} being revoked; "
        f"{d['apps']} apps, {d['rounds']} rounds; policy {d['policy']}, f = {d['f']:g}, lease {d['lease_s']:g} s"
    )
    rows = [
        (n["host"], n.get("rack"), n["gpus"], n.get("gpu_type"), n["state"], n.get("leased")) for n in d["nodes"]
    ]
    return [head, table("", ("NODE", "RACK", "GPUS", "TYPE", "STATE", "LEASED TO"), rows)]


def queue(d: dict[str, Any]) -> list[Any]:
    """`isonomy queue`: the worst rho first."""
    rows = [
        (a["app_id"], a["name"], a["queue"], a["user"], a["kind"], f"{a['gpus']}/{a['wanted_gpus']}", a["rho"],
         a["n_avg"], a["next_lease_end_s"], a["reason"], a["why"])
        for a in d["apps"]
    ]  # fmt: skip
    names = ("APP", "NAME", "QUEUE", "USER", "KIND", "GPUS", "RHO", "N_AVG", "LEASE END s", "REASON", "WHY")
    return [table("", names, rows)]


def rounds(d: dict[str, Any]) -> list[Any]:
    """`isonomy rounds`: receipts, newest first."""
    rows = []
    for r in d["rounds"]:
        bids = "; ".join(
            f"{b['app_id'][-4:]} rho {b['rho_nothing']:.2f}->{show(b['rho_won'])} won {show(b['won'])} c {b['c']:.3f}"
            for b in r.get("bids", ())
        )
        rows.append(
            (r["round_id"], clock(r["at_s"]), sum(r["offered"].values()), len(r["participants"]), bids,
             len(r.get("renewed", ())), len(r.get("granted", ())), len(r.get("revoked", ())),
             sum(r.get("leftover_gpus", {}).values()), f"{1000 * r.get('solve_s', 0):.0f}", r.get("note") or r["out"])
        )  # fmt: skip
    names = (
        "ROUND",
        "AT",
        "OFFER",
        "BIDDERS",
        "BIDS",
        "RENEWED",
        "GRANTED",
        "REVOKED",
        "LEFTOVER",
        "SOLVE ms",
        "NOTE",
    )
    return [table("", names, rows)]


def explain(d: dict[str, Any]) -> list[Any]:
    """`isonomy explain`: why it got what it got."""
    f = d["fairness"]
    lines: list[Any] = [
        f"{d['name']} ({d['app_id']}), {d['kind']} of {d['user']} in {d['queue']}",
        f"holds {d['gpus']} of the {d['wanted_gpus']} GPUs it can use {show(d['held'])}; "
        f"{d['renewals']} renewals, {d['revocations']} revocations, {d['restarts']} restarts",
        f"why: {d['reason']}: {d['why']}",
        f"rho {show(d['rho'])} = T_sh / T_id; T_id = work {show(f['work_gpu_s'])} GPU-s / "
        f"min({f['cluster_gpus']}, {f['demand_gpus']}) x N_avg {f['n_avg']:.2f} = {show(f['t_id_s'])} s"
        + (" (virtual GPUs, paced)" if f["paced"] else ""),
    ]
    for r in d["rounds"]:
        lines.append(_lived(r))
    if d["jobs"]:
        rows = [
            (j["job_id"], j["state"], j["rung"], j["step"], j["loss"], j["accuracy"], j["gpus"], j["iter_time_s"],
             j["slowdown"], j["launches"], j["configuration"])
            for j in d["jobs"]
        ]  # fmt: skip
        names = (
            "JOB",
            "STATE",
            "RUNG",
            "STEP",
            "LOSS",
            "ACCURACY",
            "GPUS",
            "ITER s",
            "S",
            "LAUNCHES",
            "CONFIGURATION",
        )
        lines.append(table("", names, rows))
    if d["best"]:
        lines.append(
            f"best: {show(d['best']['configuration'])}, accuracy {d['best']['accuracy']:.4f}, {d['model_path']}"
        )
    return lines


def _lived(r: dict[str, Any]) -> str:
    head = f"round {r['round_id']} at {clock(r['at_s'])}: {r['offered_gpus']} GPUs on offer, "
    if r["out"]:
        return head + f"took no part: {r['out']}"
    head += f"rho {show(r['rho'])} (rank {show(r['rho_rank'])} of {r['of']}), "
    if not r["offered"]:
        given = sum(n for x in r["awards"] for g in x["gangs"] for _, n in g)
        return head + f"not offered (others are worse off); got {given} leftover GPUs"
    b = r["bid"]
    if b is None:
        return head + "made no bid"
    won = sum(b["won"].values())
    text = head + f"bid {b['rows']} rows; won {won} GPUs {show(b['won'])}"
    if won:
        text += f" (rho {show(b['rho_nothing'])} -> {show(b['rho_won'])}), keeps c = {b['c']:.3f} of it"
        text += f": {b['kept_gangs']} gangs kept, {b['paid_gangs']} paid"
    if r["others_won"]:
        text += "; others won " + ", ".join(f"{k} {show(v)}" for k, v in r["others_won"].items())
    if r["revoked"]:
        text += f"; lost {', '.join(r['revoked'])}"
    return text


def report(d: dict[str, Any]) -> list[Any]:
    """The table at the end of a run."""
    rows = [
        (a["name"], a["kind"], a["queue"], a["final_state"], a["rho"], a["T_sh_s"], a["T_id_s"], a["leases"],
         a["renewals"], a["revocations"], a["restarts"],
         f"{a['best']['accuracy']:.4f} with {show(a['best']['configuration'])}" if a["best"] else "-")
        for a in d["apps"]
    ]  # fmt: skip
    names = ("APP", "KIND", "QUEUE", "STATE", "RHO", "T_SH s", "T_ID s", "LEASES", "RENEWALS", "REVOCATIONS",
             "RESTARTS", "BEST")  # fmt: skip
    tail = [
        f"{name}: median {show(d[name]['median'])} s, p95 {show(d[name]['p95'])} s, n = {d[name]['n']}"
        for name in ("bid_s", "auction_solve_s", "allocation_change_s")
    ]
    return [table("", names, rows), f"{d['rounds']} rounds", *tail]


def audit(d: dict[str, Any]) -> list[Any]:
    """`isonomy audit`."""
    lines: list[Any] = ["checked: " + ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in d["checked"].items())]
    lines += [f"not checked, no evidence: {rule}" for rule in d["unchecked"]]
    lines += [f"VIOLATION {v['kind']}: {v['what']}" for v in d["violations"]]
    return [
        *lines,
        "clean" if not d["violations"] and not d["unchecked"] else f"{len(d['violations'])} violations",
    ]
