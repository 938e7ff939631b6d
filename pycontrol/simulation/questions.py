"""Answers `why not me?` for users, in a process of its own: see whynot.py for what is asked."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.model.auction import SEGMENTS_MAX, Demand, segments
from pycontrol.model.bounds import BOUNDS
from pycontrol.model.topology import Scope
from pycontrol.queries.lookup import Refusal, find_app, number, whole_number
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.simulation.forecaster import Helper
from pycontrol.simulation.scene import ASKED, Scene, scene_of, with_app
from pycontrol.simulation.whynot import BUDGET_S, Kind, gets_text, sentence, why_not
from pycontrol.words import count, suggest

PATIENCE_S = 14.0
"""A question is given up after this long, with QUEUED_S before its client does; the first one starts the process."""
QUEUED_S = 5.0
"""How long a question waits for those before it."""
SHARE = 0.25
"""The part of a core that one user's questions take in the long run."""
SHORT_S = 1.0
USERS_MAX = 4096
GPUS_MAX = int(BOUNDS["gpus"].high)
OTHER = "another app"
"""An app that the asker may not view."""


class Questions:
    """Answers one question at a time; any thread may ask."""

    def __init__(
        self, options: Mapping[str, Any], ends: Callable[[], Mapping[str, Any]] = dict, slower: float = 1.0
    ) -> None:
        """`options`: the policy's. `ends`: app -> its forecast. `slower`: how many times as long all may take."""
        self._options, self._ends, self._slower = dict(options), ends, slower
        self._helper = Helper(why_not, "isonomy-why-not")
        self._stopped, self._one = threading.Event(), threading.Lock()
        self._rests: OrderedDict[str, float] = OrderedDict()
        """User -> until when it may not ask again, of time.monotonic; the most recent last."""

    def stop(self) -> None:
        """End the process."""
        self._stopped.set()
        self._helper.end()

    def answer(
        self, a: Arbiter, now_s: float, params: Mapping[str, str], user: str, called: Callable[[str], str]
    ) -> dict[str, Any]:
        """The answer for an app, or for one that is not submitted yet; raises Refusal, or TimeoutError if busy.

        `called`: the name of another app, empty if the user may not view it.
        """
        if params.get("app"):
            app_id = find_app(a, params)
            scene = scene_of(a, now_s, self._options)
        else:
            app_id, scene = ASKED, with_app(scene_of(a, now_s, self._options), user, *_asked(a, params))
        said = self._ask(user, scene, app_id)
        if app_id != ASKED:  # the rounds that it has lived say more
            code, why = Reasons(a, now_s).told(app_id)
            said["reason"] = {"code": code, "sentence": why}
        changes = [self._row(c, now_s, called) for c in said["changes"]]
        if said["gets"] is not None:
            text = f"it gets {gets_text(said['gets'], now_s)} in the next round"
        elif changes:
            text = f"{count(len(changes), 'change')} would give it GPUs now, each on its own"
        elif said["played"]:
            text = f"{count(said['played'] - 1, 'change')} tried in the real round, none helps"
        else:
            text = "no round is held at present, or the cells cannot be copied as they are"
        if said["played"] and not said["complete"]:
            text += "; time was too short for all changes" + (", so smaller ones may help" if changes else "")
        known = "" if app_id == ASKED else app_id
        return {"now_s": now_s, "app_id": known, **said, "changes": changes, "sentence": text}

    def _row(self, c: Mapping[str, Any], now_s: float, called: Callable[[str], str]) -> dict[str, Any]:
        """One change as it is shown to the user."""
        name = called(c["app_id"]) if c["app_id"] else ""
        end_s = (self._ends().get(c["app_id"]) or {}).get("end_s") if c["kind"] == Kind.END else None
        row = {**c, "due_s": end_s[1] if end_s else c["due_s"]}
        known = {"kind": c["kind"], "size": c["size"], "app_id": c["app_id"] if name else "", "due_s": row["due_s"]}
        return {**known, "gets": c["gets"], "sentence": sentence(row, name or OTHER, now_s)}

    def _ask(self, user: str, scene: Scene, app_id: str) -> dict[str, Any]:
        """Asks the process; a user whose last answer took long is refused for a while, so that others go first."""
        if self._stopped.wait(self._rest_s(user)) or not self._one.acquire(timeout=QUEUED_S):
            raise TimeoutError
        try:
            self._rest_s(user)  # other questions of the user's may have been answered before its turn came
            message = scene, app_id, BUDGET_S * self._slower
            found: dict[str, Any] = self._helper.ask(message, PATIENCE_S * self._slower, self._stopped)
            rested_s = max(self._rests.pop(user, 0.0), time.monotonic())
            self._rests[user] = rested_s + found.pop("took_s") * (1 / SHARE - 1)
            if len(self._rests) > USERS_MAX:
                self._rests.popitem(last=False)
            return found
        except (OSError, EOFError) as e:
            raise TimeoutError from e
        finally:
            self._one.release()

    def _rest_s(self, user: str) -> float:
        """How long the user's next question is to wait; raises Refusal if that is long."""
        rest_s = self._rests.get(user, 0.0) - time.monotonic()
        if rest_s > SHORT_S:
            raise Refusal(429, f"why-not: the last answer took long; ask again in {rest_s:.0f} s")
        return max(0.0, rest_s)


def _asked(a: Arbiter, params: Mapping[str, str]) -> tuple[str, Demand, int]:
    """(queue, demand, priority) of an app that is not submitted yet; raises Refusal."""
    named = params.get("queue", "")
    leaves = {q.path: q for q in a.cluster.queues.values() if q.leaf}
    found = [q for path, q in leaves.items() if path == named or path.endswith(f".{named}")]
    if len(found) != 1:
        known = [q.path for q in found] or sorted(leaves if "." in named else {p.rpartition(".")[2] for p in leaves})
        raise Refusal(400, f"queue: must be a leaf queue; {suggest(named, known)} (got {named or 'nothing'})")
    if found[0].stopped or found[0].unmanaged:
        raise Refusal(409, f"queue: {named} is {'stopped' if found[0].stopped else 'served by CapacityScheduler'}")
    gang = whole_number(params, "gang", 1, 1, GPUS_MAX)
    gpus = whole_number(params, "gpus", gang, 1, GPUS_MAX)
    if gpus % gang:
        raise Refusal(400, f"gang: {gang} does not divide gpus: {gpus}")
    parts = whole_number(params, "segments", 0, 0, SEGMENTS_MAX)
    if parts and gang % parts:
        raise Refusal(400, f"segments: {parts} does not divide gang: {gang}")
    kinds = {scope.name.lower(): scope for scope in Scope}
    if params.get("scope", "cluster") not in kinds:
        raise Refusal(400, f"scope: must be {', '.join(kinds)} (got {params['scope']})")
    scope, of_type, within = kinds[params.get("scope", "cluster")], params.get("type", ""), params.get("within", "")
    members = segments(gang, parts, Scope.RACK if params.get("segment") == "rack" else Scope.MACHINE)
    work_gpu_s = number(params, "work_total_gpu_s") or a.settings.lease_s * gpus
    demand = Demand(
        gang, gpus // gang, gang, work_gpu_s, work_gpu_s, scope=scope, gpu_type=of_type, within=within, members=members,
        pinned=params.get("pinned", ""), opportunistic=params.get("opportunistic") == "true",
    )  # fmt: skip
    return found[0].path, demand, int(number(params, "priority") or 0)
