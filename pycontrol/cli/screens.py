"""What each view looks like on a screen."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from pycontrol import words
from pycontrol.cli.tables import ByWidth, Data, clock, fields, lines, moment, printable, show, table
from pycontrol.model.cluster import STANDIN
from pycontrol.words import count, left, span

WIDE = 140
"""Columns from which reasons and bids have room in their line."""

ACTS_SHOWN, ACTS_S = 3, 86400.0
"""The newest acts of operators that `status` shows, and how old they are at most."""


def status(d: Data) -> Group:
    """The cluster."""
    gpus = d["gpus"]
    more = [f"{gpus[k]} {k}" for k in ("drained", "bad", "down") if gpus[k]]
    apps = d["apps"]
    head = (
        f"{d['state']}: {gpus['leased']} of {gpus['total']} GPUs leased,"
        f" {', '.join([str(gpus['free']) + ' free', *more])};"
        f" {apps['running']} apps running, {apps['waiting']} waiting, {apps['ended']} ended"
    )
    mode = d["mode"]
    if mode["name"] != "on":
        since = f" by {mode['by']}, {moment(mode['at_s'])}" if mode["at_s"] else ""
        head += f"\nthe mode is {mode['name']}{since}" + (f": {mode['problem']}" if mode["problem"] else "")
    if d["held"]:
        head += f"\nleases are held and nothing is changed, as the state contradicts itself: {d['held']}"
    if 2 * d["launch_s"] > d["lease_s"]:
        head += f"\na launch takes {span(d['launch_s'])} here, so gangs that change places use little of their leases"
        head += f" of {span(d['lease_s'])}: lengthen lease_s"
    head += "".join(f"\n{x['target']} is {boosted(x)}" for x in d["boosts"])
    news = [x for x in d["acts"] if d["now_s"] - x["at_s"] < ACTS_S][:ACTS_SHOWN]
    head += "".join(f"\n{x['text']}, {moment(x['at_s'])}" for x in news)
    rules = f"policy {d['policy']}, f = {d['f']:g}, leases of {span(d['lease_s'])}; {d['rounds']} rounds held"
    last = d["last_round"]
    if last:
        rules += (
            f", the last {span(d['now_s'] - last['at_s'])} ago:"
            f" {last['renewed']} GPUs renewed, {last['granted']} granted, {last['revoked']} revoked"
        )
    rows = []
    for n in d["nodes"]:
        state = n["state"] + (f" ({n['reason']})" if n["reason"] else "")
        bad = ", ".join(map(str, n["bad_gpus"]))
        rows.append((n["host"], n["rack"], state, *fields(n, "gpus free leased"), bad, n["gpu_type"], n["virtual"]))
    names = ("NODE", "RACK", "STATE", ">GPUS", ">FREE", ">LEASED", "BAD", "TYPE", "VIRTUAL")
    return lines(head, rules, "", table(names, rows) if rows else "no node has registered")


def queue(d: Data) -> RenderableType:
    """Who waits, and why; on a narrow screen the reasons stand below the table."""
    if not d["apps"]:
        return lines("no app shares the cluster now; isonomy jobs lists those that have ended")
    rows = []
    for a in d["apps"]:
        ends = estimate(a.get("start_s"), a.get("end_s"), a["gpus_held"], d["now_s"])
        rows.append((*fields(a, "position name app_id queue user kind"), *_holds(a, d), ends, a["reason"], _why(a)))
    what = (">#", "NAME", "APP", "QUEUE", "USER", "KIND")
    names = (*what, ">GPUS", *_by_column(d), ">LEASE", "ESTIMATE", "REASON", "WHY")
    why = [(a["position"], f"{a['app_id']}, {a['kind']} of {a['user']}: {_why(a)}") for a in d["apps"]]
    return ByWidth(table(names, rows), lines(short_queue(d), "", table((">#", "APP AND WHY"), why)), WIDE)


def _why(a: Data) -> str:
    """Why it has what it has, in the queue."""
    return "; ".join(filter(None, [boosted(a.get("boost")), a["sentence"]]))


def boosted(boost: Data | None) -> str:
    """Who boosted an app, and until when; empty if nobody did."""
    return f"boosted by {boost['by']} until {clock(boost['until_s'])}" if boost else ""


def short_queue(d: Data) -> Group:
    """The same in 80 columns: a line an app."""
    rows = [(*fields(a, "position name"), a["queue"].rpartition(".")[2], *_holds(a, d), a["reason"]) for a in d["apps"]]
    names = (">#", "NAME", "QUEUE", ">GPUS", *_by_column(d), ">LEASE", "REASON")
    return lines(table(names, rows) if rows else "no app shares the cluster now")


def jobs(d: Data) -> RenderableType:
    """What ran, newest first."""
    rows = []
    for a in d["apps"]:
        state = a["final_state"] or ("running" if a["gpus_held"] else "waiting")
        took, gpu_h = span((a["finished_s"] or d["now_s"]) - a["submitted_s"]), f"{a['attained_gpu_s'] / 3600:.2f}"
        best = (result(a["best"]) if a["best"] else "-"), a["model_path"]
        rows.append((*fields(a, "name app_id user"), state, clock(a["submitted_s"]), took, gpu_h, *best))
    names = ("NAME", "APP", "USER", "STATE", "SUBMITTED", ">TOOK", ">GPU-H", "BEST", "KEPT IN")
    return table(names, rows) if rows else lines("no app has run since then")


COLUMNS = {"virtual finish time": "DUE", "attained service": "SERVED", "dominant share": "SHARE"}
"""Short names of what policies order by."""


def _by_column(d: Data) -> list[str]:
    """The column of what the policy orders by; none where that is no number."""
    name = d["measure"]["name"]
    return [f">{COLUMNS.get(name, name.upper())}"] if name else []


def _holds(a: Data, d: Data) -> tuple[str, ...]:
    """GPUs held and wanted, the amount that the policy orders by, and what is left of the lease."""
    amount = a["rho"] if d["measure"]["name"] == "rho" else a["amount"]
    by = [words.standing(amount, d["measure"])] if d["measure"]["name"] else []
    return f"{a['gpus_held']}/{a['gpus_held'] + a['gpus_wanted']}", *by, left(a["next_lease_end_s"], d["now_s"])


def estimate(start_s: Any, end_s: Any, held: int, now_s: float) -> str:
    """`starts in ~25 min (15 min to 60 min)`, or of an app with GPUs `ends in ~3 h`; - where it is not known."""
    quantiles = end_s if held else start_s
    text = words.estimate(quantiles, now_s)
    if text and quantiles[2] is not None and quantiles[2] - now_s < 1:
        return "ends now" if held else "starts at once"
    return f"{'ends' if held else 'starts'} in {text}" if text else "-"


def rounds(d: Data) -> RenderableType:
    """Receipts, newest first; on a narrow screen bids and outcome are one text."""
    if not d["rounds"]:
        return lines("no round has been held")
    rows = [_receipt(r, d["names"]) for r in d["rounds"]]
    moved = (">RENEWED", ">GRANTED", ">REVOKED", ">LEFTOVER", ">UNUSED")
    names = ("ROUND", "AT", ">GPUS", "BIDS", *moved, ">SOLVE ms", "PROVED", "NOTE")
    outcome = "BIDS AND OUTCOME"
    if not any(r["asked"] for r in d["rounds"]):
        outcome, bids = "OUTCOME", names.index("BIDS")
        names, *rows = ((*row[:bids], *row[bids + 1 :]) for row in (names, *rows))
    short = [_short_receipt(r, d["names"]) for r in d["rounds"]]
    return ByWidth(table(names, rows), table(("ROUND", "AT", ">GPUS", outcome), short), WIDE)


def _short_receipt(r: Data, names: Data) -> tuple[Any, ...]:
    came = [f"{len(r.get(k, ()))} {k}" for k in ("renewed", "granted", "revoked") if r.get(k)]
    text = [*(_bid(b, names) for b in r.get("bids", ())), ", ".join(came) or "nothing moved"]
    return r["round_id"], clock(r["at_s"]), sum(r["offered"].values()), "; ".join(text)


def _receipt(r: Data, names: Data) -> tuple[Any, ...]:
    bids = [_bid(b, names) for b in r.get("bids", ())]
    out = [f"{names.get(a, a)} out: {why}" for a, why in r["out"].items()]
    out += [f"{names.get(a, a)} boosted by {by}" for a, by in r.get("boosted", {}).items()]
    out += [f"bad: {', '.join(r['bad_gpus'])}"] if r.get("bad_gpus") else []
    out += [
        f"{x['id']}: {x['lot']['count']} x {x['lot']['cell_type']} of {x['owner']} for {x['tenant']}"
        for x in r.get("deals", ())
    ]
    bids = bids or ["nobody bid" if r["asked"] else "-"]
    solve_ms = f"{1000 * r['solve_s']:.0f}" if "solve_s" in r else None
    leftover, unused = (sum(r.get(k, {}).values()) for k in ("leftover_gpus", "unused_gpus"))
    head = r["round_id"], clock(r["at_s"]), sum(r["offered"].values()), "; ".join(bids)
    moved = (len(r.get(k, ())) for k in ("renewed", "granted", "revoked"))
    note = "; ".join(filter(None, [r.get("note"), *out]))
    return *head, *moved, leftover, unused, solve_ms, r.get("proved_optimal"), note


def _bid(b: Data, names: Data) -> str:
    won = sum(b["won"].values())
    text = f"{names.get(b['app_id'], b['app_id'])} {show(b['rho_nothing'])}"
    return f"{text} won {won}, rho {show(b['rho_won'])}, c {b['c']:.3f}" if won else f"{text} won nothing"


# ---- explain


def explain(d: Data) -> Group:
    """Why one app got what it got."""
    a, now_s = d["app"], d["now_s"]
    head = f"{a['name']} ({a['app_id']}), {a['kind'] or 'no GPUs asked for yet'}, of {a['user']} in {a['queue']}"
    ended = f", ended {clock(a['finished_s'])} {a['final_state']}" if a["finished_s"] else ""
    since = f"submitted {clock(a['submitted_s'])}{ended}; holds {count(a['gpus_held'], 'GPU')}"
    counted = (count(a[f"{what}s"], what) for what in ("lease", "renewal", "revocation", "restart"))
    since += f"; {', '.join(counted)}"
    parts: list[RenderableType | None] = [head, since, f"{d['reason']['code']}: {d['reason']['sentence']}"]
    if d["agent"] is not None and not d["agent"]["connected"]:
        parts.append("its Agent is not connected")
    parts += [_when(d), _controls(d.get("controls") or {})]
    if d["rho"] is not None:
        parts += ["", *_rho(d["rho"])]
    if d["leases"]:
        parts += ["", _leases(d["leases"], now_s)]
    parts += [deal(x, now_s) for x in d["deals"]]
    parts += [f"{x['label']}: {x['url']}" for x in d.get("links", ())]
    if d["jobs"]:
        notes = (f"{j['job_id']} {j['note']}" for j in d["jobs"] if j["note"])
        parts += ["", _jobs(d["jobs"], d.get("hidden", False)), *notes, d.get("lost") or None]
    if d["rounds"]:
        parts += ["", "its rounds, newest first:"]
        parts += [f"  {r['round_id']} {clock(r['at_s'])}: {r['text']}" for r in d["rounds"]]
    parts.append(_best(a))
    return lines(*parts)


def why_not(d: Data) -> Group:
    """What would give an app GPUs now."""
    waits = None if d["gets"] else f"{d['reason']['code']}: {d['reason']['sentence']}"
    return lines(waits, d["sentence"], *(f"  {c['sentence']}" for c in d["changes"]))


def _controls(c: Data) -> str | None:
    """What its user asked for beyond GPUs; None where that is nothing."""
    said = [f"priority {c['priority']}"] if c.get("priority") else []
    said += [f"gangs within one {c['within']}"] if c.get("within") else []
    said += [f"segments of {c['segments']}"] if c.get("segments") else []
    said += [f"in the pinned cell {c['pinned']}"] if c.get("pinned") else []
    said += ["opportunistic"] if c.get("opportunistic") else []
    said += ["lazy preemption"] if c.get("lazy_preemption") else []
    asked = [boosted(c["boost"])] if c.get("boost") else []
    asked += [f"asked for: {', '.join(said)}"] if said else []
    asked += [c["declared"]] if c.get("declared") else []
    asked += ["it keeps no checkpoints: it starts again after each revocation"] if c.get("unsaved") else []
    return "\n".join(asked) if asked else None


def _when(d: Data) -> str | None:
    """When it ends, and what the estimates assume; the reason says when it starts."""
    e = d.get("estimate") or {}
    text = estimate(None, e.get("end_s"), 1, d["now_s"])
    return None if text == "-" else f"estimate: {text}, if {e['assumed']}"


def deal(x: Data, now_s: float) -> str:
    """A deal of cell exchange, in a line."""
    lot, back = ("{count} x {cell_type}".format(**x[k]) if x[k] else "" for k in ("lot", "in_return"))
    text = f"exchange: {x['tenant']} has {lot} of {x['owner']}{f' for {back}' if back else ''}"
    return f"{text} ({x['id']}) for {left(x['end_s'], now_s)} more"


def _rho(r: Data) -> list[str]:
    paced = ", times of virtual GPUs (paced)" if r["paced"] else ""
    return [
        f"rho = T_sh / T_id = {show(r['t_sh_s'])} s / {show(r['t_id_s'])} s = {show(r['rho'])}"
        f" (by its {r['by']}{paced})",
        f"T_id = work / min(R_C, demand) x N_avg = {show(r['work_total_gpu_s'])} GPU-s /"
        f" min({r['cluster_gpus']}, {r['demand_gpus']}) x {show(r['n_avg'])}",
        f"T_sh = {span(r['elapsed_s'])} since its submission + the time of {show(r['work_left_gpu_s'])} GPU-s left;"
        f" it could use {count(r['gangs'], 'gang')} of {count(r['gang_gpus'], 'GPU')}",
    ]


def _leases(leases: list[Data], now_s: float) -> RenderableType:
    groups: dict[tuple[Any, ...], list[str]] = {}
    for x in leases:
        job = "stand-in" if x["job_id"].startswith(STANDIN) else x["job_id"]
        state = f"{x['state']} ({x['reason']})" if x["reason"] else x["state"]
        key = (state, job, x["grant_id"], x["container_id"], left(x["end_s"], now_s))
        groups.setdefault(key, []).append(x["gpu"])
    rows = [
        (", ".join(gpus), state, job, grant, container, end)
        for (state, job, grant, container, end), gpus in groups.items()
    ]
    return table(("GPUS", "LEASE", "JOB", "GRANT", "CONTAINER", ">ENDS IN"), rows)


def _jobs(jobs: list[Data], hidden: bool) -> RenderableType:
    """`hidden`: the caller may not see what the jobs learn."""

    def learnt(j: Data) -> tuple[str, str]:
        metric = j.get("metric")
        loss = f"{j['loss']:.4g}" if j["loss"] else "-"  # 0: no line showed one
        return ("-", "-") if hidden else (loss, "-" if metric is None else f"{metric:.4f}")

    rows = []
    for j in jobs:
        pace = f"{j['iter_time_s']:.3f}", *fields(j, "slowdown restarts worker_failures configuration")
        rows.append((*fields(j, "job_id state rung step"), *learnt(j), j["gpus"], *pace))
    trained = ("JOB", "STATE", ">RUNG", ">STEP", ">LOSS", ">METRIC", ">GPUS")
    names = (*trained, ">ITER s", ">S", ">RESTARTS", ">FAILURES", "CONFIGURATION")
    return table(names, rows)


def _best(a: Data) -> str | None:
    said = f"it said: {a['message']}" if a["message"] not in ("", "done") and a["finished_s"] else None
    if not a["best"]:
        return "\n".join(filter(None, [said, kept(a["model_path"])])) or None
    best = "; ".join(filter(None, [result(a["best"]), kept(a["model_path"])]))
    return "\n".join(filter(None, [f"best: {best}" if best else None, said]))


def kept(path: str) -> str:
    """Where what an app left behind is."""
    what = "results" if path.rpartition("/")[2].startswith("results-") else "model"
    return f"{what} in {path}" if path else ""


def result(best: Data) -> str:
    """As `words.result`, for a screen."""
    return printable(words.result(best))


# ---- records


def audit(d: Data) -> Group:
    """The audit's findings."""
    checked = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in d["checked"].items())
    skipped = [f"NOT CHECKED {x['check']}: {x['why']}" for x in d["unchecked"]]
    rows = [(v["kind"], clock(v["when"]), v["what"]) for v in d["violations"]]
    if rows:
        end = count(len(rows), "violation")
    else:
        end = "clean" if d["complete"] else "no violation found, but not everything was checked"
    return lines(f"checked: {checked}", *skipped, table(("VIOLATION", "AT", "WHAT"), rows) if rows else None, end)
