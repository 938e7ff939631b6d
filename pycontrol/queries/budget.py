"""Limits of accounts as the REST resource shows them, and the command that sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.limits import KINDS, Level
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.model.accounts import UNLIMITED
from pycontrol.model.events import OperatorCommand
from pycontrol.queries.lookup import Refusal, number
from pycontrol.words import suggest

PARAMS = frozenset({"account", *KINDS})
NONE = "none"
FILE = "isonomy.yaml"


def budget(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """Each limit in force, how much of it is used, and who set it; the fullest first. Times in Unix seconds."""
    levels = [level for name in a.holdings.limits.in_force for level in a.holdings.limits.levels(name, now_s)]
    rows = [_row(a, x) for x in sorted(levels, key=lambda x: (-x.share, x.account, x.kind))]
    return {"now_s": now_s, "limits": rows}


def _row(a: Arbiter, x: Level) -> dict[str, Any]:
    own = a.durable.limits.get(x.account)
    by = {"set_by": FILE, "set_s": None} if own is None else {"set_by": own.user, "set_s": own.at_s}
    return {**asdict(x), "share": x.share, "sentence": str(x), **by}


def command(a: Arbiter, now_s: float, path: str, params: Mapping[str, str], user: str) -> OperatorCommand:
    """The command in a caller's parameters: limits that it does not name stay as they are. Raises Refusal."""
    account = _account(a, params.get("account", ""))
    if path != SET_LIMITS:
        if account not in a.durable.limits:
            raise Refusal(409, f"account: no command has set limits of {account}; those of {FILE} are in force")
        return OperatorCommand(path, account, user)
    if not params.keys() & {*KINDS}:
        raise Refusal(400, f"{', '.join(KINDS)}: give at least one of them")
    given = {k: None if params[k] == NONE else number(params, k, f"a number or {NONE}") for k in KINDS if k in params}
    if (gpus := given.get("gpus")) is not None and not gpus.is_integer():
        raise Refusal(400, f"gpus: must be a whole number (got {params['gpus']})")
    values = {**asdict(a.holdings.limits.in_force.get(account, UNLIMITED)), **given}
    return OperatorCommand(path, account, user, values={k: x for k, x in values.items() if x is not None})


def text_of(c: OperatorCommand) -> str:
    """What a command that was carried out did."""
    if c.verb != SET_LIMITS:
        return f"{c.target} has the limits of {FILE} again"
    said = ", ".join(f"{kind} {x:g}" for kind, x in c.values.items()) or "no limits"
    return f"{c.target} has {said}, whatever {FILE} says, until `isonomy budget {c.target} --reset`"


def _account(a: Arbiter, named: str) -> str:
    kind, _, name = named.partition(" ")
    known = {
        "group": {x.removeprefix("group ") for x in a.settings.accounts.groups_named()},
        "queue": set(a.cluster.queues),
    }
    if kind not in ("user", *known) or not name or len(named) > 256 or not name.isprintable():
        raise Refusal(400, f"account: must be `user NAME`, `group NAME` or `queue PATH` (got {named or 'nothing'})")
    if name not in known.get(kind, {name}):
        raise Refusal(404, f"account: there is no {named}; {suggest(name, sorted(known[kind]))}")
    return named
