"""The REST resource /ws/v1/cluster/isonomy/: a fixed table of routes to views and verbs.

The ResourceManager authenticates callers and forwards queries; this module authorises them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.audit.accounting import KEPT
from pycontrol.cells.layout import Layout
from pycontrol.config import ConfigError
from pycontrol.model.accounts import Accounts
from pycontrol.model.events import OperatorCommand
from pycontrol.policies.policy_port import Policy
from pycontrol.queries import budget, cells_view, explain, metrics, views
from pycontrol.queries.lookup import Refusal, find_app, find_host, find_target, is_known, user_of, whole_number
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.queries.pictures import Pictures
from pycontrol.queries.shadow import NOTHING
from pycontrol.queries.waiting import with_start
from pycontrol.runtime.driver import Driver, Overloaded
from pycontrol.runtime.inbox import Held
from pycontrol.runtime.journal import JournalError, NoJournal
from pycontrol.web.acls import LEFT_OUT
from pycontrol.web.feed import Feed
from pycontrol.web.page.site import Page
from pycontrol.web.page.text import APP_ID

EVENTS_SHOWN, EVENTS_MAX = 20, 500
BOOST_MAX_S = 30 * 86400
USAGE_BY = "month,account"
NO_FORECAST: Mapping[str, Any] = {"made_s": None, "assumed": "", "problem": "no forecasts are made", "apps": {}}
UNFORESEEN = {"start_s": None, "end_s": None}
WAIT_MAX_S = 10
"""The longest long poll, well below the ResourceManager's timeout of a query."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A query after authentication."""

    path: str
    params: Mapping[str, str]
    user: str
    admin: bool
    viewable: frozenset[str] | None = None
    """The apps that YARN's ACLs let the caller view; None: ACLs are off."""

    def sees(self, app_id: str, owner: str) -> bool:
        """Whether the caller may see the app's configurations and messages."""
        mine = bool(self.user) and self.user == owner
        return self.viewable is None or self.admin or mine or app_id in self.viewable


@dataclass(frozen=True, slots=True)
class Route:
    """One path: its method, its parameters and its handler."""

    method: str
    answer: Callable[[RestRequest], dict[str, Any]]
    params: frozenset[str] = frozenset()
    admin: bool = False
    """Whether it is for YARN's admins alone."""


CellsReader = Callable[[str], tuple[Layout, Mapping[str, Policy], str, Callable[[], None]]]
"""Reads the cells file again and says how to get the former back; the argument is the path that the operator gave. What
it returns last is called once the cells are in force."""

WhyNot = Callable[[Arbiter, float, Mapping[str, str], str, Callable[[str], str]], dict[str, Any]]
"""Answers `why not me?` in a picture: (Arbiter, time, parameters, user, names of the apps that the user may view)."""
WHY_NOT = frozenset(
    {"app", "queue", "gpus", "gang", "type", "scope", "within", "segments", "segment", "pinned", "opportunistic"}
    | {"priority", "work_total_gpu_s"}
)


@dataclass(eq=False, repr=False)
class Router:
    """Answers queries; from any thread."""

    driver: Driver
    _: KW_ONLY
    issue: Callable[[str, str], str]
    """(app id, user) -> token."""
    arbiter_address: str
    ca: str = ""
    token_ttl_s: float = 7 * 86400.0
    feed: Feed = field(default_factory=lambda: Feed(NoJournal()))
    read_cells: CellsReader | None = None
    traders: Mapping[str, Collection[str]] = field(default_factory=dict)
    """{virtual cluster: users who, besides admins, may exchange its cells}."""
    picture: Callable[[Arbiter, float], dict[str, Any]] | None = None
    """The Arbiter's state for what-if runs."""
    estimates: Callable[[], Mapping[str, Any]] = lambda: NO_FORECAST
    """The estimated starts and ends of apps."""
    secure: Callable[[], str] = lambda: ""
    """Stores a command's effect for a takeover; returns why that failed, or an empty string."""
    shadow: Callable[[], Mapping[str, Any]] = lambda: NOTHING
    why_not: WhyNot | None = None
    usage: Callable[[Sequence[str], Accounts], dict[str, Any] | None] = lambda by, accounts: None

    def __post_init__(self) -> None:
        self.pictures = Pictures(self.driver)
        self._applying = threading.Lock()
        self._page = Page()
        self.routes = self._all_routes()

    def _all_routes(self) -> dict[str, Route]:
        reasons_of = lru_cache(maxsize=1)(Reasons)  # views of one picture share them
        explained = partial(explain.explain, jobs_of=self.feed.trends.jobs, reasons_of=reasons_of)
        return {
            "status": self._get(views.status),
            "queue": self._foreseen(self._get(views.queue), self._with_estimates),
            "picture": self._get(self._picture_of),
            "apps": self._get(views.apps),
            "leases": self._get(views.leases),
            "explain": self._foreseen(self._get(explained, "app", "n"), self._with_estimate),
            "why-not": Route("GET", self._answer_why_not, WHY_NOT),
            "logs": self._get(partial(views.logs, remembered=self.feed.spans.containers), "app"),
            "audit": self._get(views.audit),
            "shadow": Route("GET", lambda _: dict(self.shadow())),
            "usage": self._get(self._usage, "by"),
            "trends": self._get(self.feed.trends.trends, "app", "hours"),
            "spans": self._get(self.feed.spans.view, "app"),
            "cells": self._get(cells_view.cells, live=True),
            "cells-apply": Route("POST", self._apply_cells, frozenset({"file"}), admin=True),
            "budget": self._get(budget.budget),
            "budget-set": Route("POST", self._set_limits, budget.PARAMS, admin=True),
            "budget-reset": Route("POST", self._set_limits, frozenset({"account"}), admin=True),
            "exchange": self._get(cells_view.exchange, live=True),
            "exchange-offer": Route("POST", self._exchange, cells_view.PARAMS),
            "exchange-request": Route("POST", self._exchange, cells_view.PARAMS),
            "exchange-withdraw": Route("POST", self._exchange, frozenset({"id"})),
            "rounds": Route("GET", self._rounds, frozenset({"n"})),
            "events": Route("GET", self._events, frozenset({"since", "wait_s", "limit"})),
            "token": Route("GET", self._token, frozenset({"app"})),
            "metrics": Route("GET", lambda _: {"content_type": metrics.CONTENT_TYPE, "text": self.metrics_text()}),
            "kill": Route("POST", self._kill, frozenset({"app"})),
            "drain": Route("POST", self._drain, frozenset({"node"}), admin=True),
            "undrain": Route("POST", self._drain, frozenset({"node"}), admin=True),
            "boost": Route("POST", self._boost, frozenset({"target", "for_s"}), admin=True),
            "pause": Route("POST", self._switch, admin=True),
            "resume": Route("POST", self._switch, admin=True),
        }

    def handle(
        self, method: str, path: str, params: Mapping[str, str], user: str, admin: bool,
        viewable: frozenset[str] | None = None,
    ) -> tuple[int, dict[str, Any]]:  # fmt: skip
        """(HTTP status, JSON object). A text answer is {"content_type": ..., "text": ...}."""
        request = RestRequest(path.strip("/"), params, user, admin, viewable)
        if request.path == "ui" or request.path.startswith("ui/"):
            return self._page.answer(method, path.lstrip("/"), params, partial(self._read, request))
        try:
            return 200, self._answer(method, request)
        except Refusal as e:
            return e.status, {"error": str(e)} | ({"paths": sorted(self.routes)} if e.status == 404 else {})
        except (TimeoutError, Overloaded) as e:
            return 503, {"error": str(e) if isinstance(e, Held) else "the control plane is busy; try again"}

    def _answer(self, method: str, request: RestRequest) -> dict[str, Any]:
        """The answer, without what the caller may not see."""
        route = self._route(method, request)
        if route.admin:
            self._need_admin(request)
        found = route.answer(request)
        leave_out = LEFT_OUT.get(request.path)
        return found if leave_out is None or request.viewable is None else leave_out(found, request.sees)

    def _route(self, method: str, request: RestRequest) -> Route:
        route = self.routes.get(request.path)
        if route is None:
            raise Refusal(404, f"no path {request.path or '/'}; there are {', '.join(sorted(self.routes))}")
        if route.method != method:
            raise Refusal(405, f"{request.path}: needs {route.method} (got {method})")
        unknown = sorted(set(request.params) - route.params)
        if unknown:
            known = ", ".join(sorted(route.params)) or "none"
            raise Refusal(400, f"{request.path}: unknown parameter {unknown[0]}; known: {known}")
        return route

    def _get(self, view: views.View, *params: str, live: bool = False) -> Route:
        """A route to a view of a fresh picture; `live`: of the live state, for the cells, which pictures lack."""

        def answer(request: RestRequest) -> dict[str, Any]:
            key = (request.path, *sorted(request.params.items()))
            return self.pictures.answer(key, lambda a, now_s: view(a, now_s, request.params), live)

        return Route("GET", answer, frozenset(params))

    # ---- reading

    def _read(self, request: RestRequest, path: str, params: Mapping[str, str]) -> dict[str, Any]:
        """A view for the page; raises Refusal."""
        return self._answer("GET", replace(request, path=path, params=params))

    def _foreseen(self, route: Route, add: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]]) -> Route:
        """A route whose answer also has the newest forecast."""
        return Route("GET", lambda request: add(route.answer(request), self.estimates()), route.params)

    @staticmethod
    def _with_estimates(found: dict[str, Any], forecast: Mapping[str, Any]) -> dict[str, Any]:
        """Add `start_s` and `end_s` to each app: 10, 50 and 90 % quantiles, or None."""
        now_s, rows = found["now_s"], []
        for row in found["apps"]:
            seen = {**UNFORESEEN, **row, **forecast["apps"].get(row["app_id"], {})}
            said = with_start(row["reason"], row["sentence"], row["gpus_held"], seen["start_s"], now_s)
            rows.append({**seen, "sentence": said})
        return {**found, "apps": rows, "forecast": {k: v for k, v in forecast.items() if k != "apps"}}

    @staticmethod
    def _with_estimate(found: dict[str, Any], forecast: Mapping[str, Any]) -> dict[str, Any]:
        """When the app starts and ends, and a line; nothing of one that has ended, which an older forecast may have."""
        ended = found["app"].get("finished_s") is not None
        estimate = UNFORESEEN if ended else forecast["apps"].get(found["app"]["app_id"], UNFORESEEN)
        code, sentence = found["reason"]["code"], found["reason"]["sentence"]
        said = with_start(code, sentence, found["app"]["gpus_held"], estimate["start_s"], found["now_s"])
        told = {"reason": {"code": code, "sentence": said}, "line": explain.line({**found, "estimate": estimate})}
        return {**found, **told, "estimate": {**estimate, **{k: v for k, v in forecast.items() if k != "apps"}}}

    def _picture_of(self, a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
        """The Arbiter's state, from which the simulator continues."""
        if self.picture is None:
            raise Refusal(404, "picture: this control plane gives none")
        return self.picture(a, now_s)

    def _answer_why_not(self, request: RestRequest) -> dict[str, Any]:
        """The smallest changes that would give an app GPUs now, played on the newest picture in another process."""
        if self.why_not is None:
            raise Refusal(404, "why-not: this control plane answers none")
        picture = self.pictures.newest()
        a = picture.arbiter

        def called(app_id: str) -> str:
            return a.durable.apps[app_id].name or app_id if request.sees(app_id, user_of(a, app_id)) else ""

        found = self.why_not(a, picture.now_s, request.params, request.user, called)
        held = a.holdings.holding(found["app_id"])
        start_s = self.estimates()["apps"].get(found["app_id"], UNFORESEEN)["start_s"]
        why, now_s = found["reason"], found["now_s"]
        said = with_start(why["code"], why["sentence"], held, start_s, now_s)
        return {**found, "reason": {**why, "sentence": said}}

    def _usage(self, a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
        """GPU time of the last year, by day or by month, and by whom."""
        by = params.get("by", USAGE_BY).split(",")
        if unknown := [key for key in by if key not in KEPT]:
            raise Refusal(400, f"by: must be some of {', '.join(KEPT)} (got {unknown[0] or 'nothing'})")
        try:
            found = self.usage(by, a.settings.accounts)
        except JournalError as e:
            raise Refusal(503, f"usage: {e}") from e
        if found is None:
            raise Refusal(404, "usage: nothing is counted yet: the first time is an hour after the first fact")
        return {"now_s": now_s, **found}

    def _rounds(self, request: RestRequest) -> dict[str, Any]:
        picture = self.pictures.newest()
        return views.rounds(picture.arbiter, picture.now_s, request.params)

    def _events(self, request: RestRequest) -> dict[str, Any]:
        wait_s = whole_number(request.params, "wait_s", 0, 0, WAIT_MAX_S)
        limit = whole_number(request.params, "limit", EVENTS_SHOWN, 1, EVENTS_MAX)
        since = whole_number(request.params, "since", -1, 0, 1 << 60)
        return self.feed.since(None if since < 0 else since, float(wait_s), limit)

    def metrics_text(self) -> str:
        """All metrics; raises TimeoutError or Overloaded."""

        def view(a: Arbiter, now_s: float) -> dict[str, Any]:
            return {"text": self.feed.metrics.text(a, views.gpu_counts(a), now_s)}

        return str(self.pictures.answer(("metrics",), view)["text"])

    def _token(self, request: RestRequest) -> dict[str, Any]:
        """A token for an app that is about to be submitted, or was, by this user; registration checks both."""
        app_id, user = request.params.get("app", ""), request.user
        if not APP_ID.fullmatch(app_id):
            raise Refusal(400, f"app: must be an application id, application_..._... (got {app_id or 'nothing'})")
        if not user:
            raise Refusal(401, "token: the ResourceManager does not know who asks; add user.name=... or use SPNEGO")

        def owner(a: Arbiter, now_s: float) -> tuple[str, bool, float]:
            record = a.durable.apps.get(app_id)
            ended = record is not None and record.finished_s is not None
            return (user_of(a, app_id) if is_known(a, app_id) else user), ended, now_s

        whose, ended, now_s = self.driver.call(owner)
        if whose != user:
            raise Refusal(403, f"token: {app_id} is {whose}'s, {user} may have no token for it")
        if ended:
            raise Refusal(409, f"token: {app_id} has ended")
        about = {"arbiter": self.arbiter_address, "ca": self.ca, "expires_s": now_s + self.token_ttl_s}
        return {"token": self.issue(app_id, user), **about}

    # ---- changing

    def _carry_out(self, request: RestRequest, target: str, text: str, **more: Any) -> dict[str, Any]:
        self.driver.submit(OperatorCommand(request.path, target, request.user, **more))
        self.driver.call(lambda a, now_s: None)  # commands and calls are taken in order: it is done now
        self.pictures.expire()
        if request.path != "kill":  # which ends what is here, and is over
            self._must_last(request)
        return {"ok": True, "verb": request.path, "target": target, "text": text}

    def _must_last(self, request: RestRequest) -> None:
        """What is acknowledged holds after a failover, too."""
        problem = self.secure()
        if problem:
            unknown = "in force now, but a control plane that takes over would not know of it"
            raise Refusal(503, f"{request.path}: {unknown} ({problem}); repeat it")

    @staticmethod
    def _need_admin(request: RestRequest) -> None:
        if not request.admin:
            who = request.user or "a caller that the ResourceManager does not know"
            raise Refusal(403, f"{request.path}: {who} is not in YARN's admin ACL (yarn-site.xml: yarn.admin.acl)")

    def _kill(self, request: RestRequest) -> dict[str, Any]:
        app_id = request.params.get("app", "")
        if not self.driver.call(lambda a, now_s: is_known(a, app_id)):
            picture = self.pictures.newest()  # all names are compared: not on the Arbiter's thread
            app_id = find_app(picture.arbiter, request.params)

        def look(a: Arbiter, now_s: float) -> tuple[str, str, bool]:
            record = a.durable.apps.get(app_id)
            if record is not None and record.finished_s is not None:
                state = "ended"
            else:
                state = "starting" if record is None and app_id not in a.agents else "here"
            return user_of(a, app_id) if is_known(a, app_id) else "", state, app_id in a.agents

        whose, state, has_agent = self.driver.call(look)
        if not request.user or request.user != whose:
            self._need_admin(request)
        if state == "ended":
            raise Refusal(409, f"kill: {app_id} has ended already")
        if state == "starting":
            raise Refusal(409, f"kill: {app_id} has not asked for GPUs yet; use: yarn application -kill {app_id}")
        if has_agent:
            text = f"{app_id} was told to end"
        else:
            text = (
                f"{app_id} has no Agent: its containers with GPUs end and it gets no more;"
                f" to end all of it: yarn application -kill {app_id}"
            )
        return self._carry_out(request, app_id, text)

    def _drain(self, request: RestRequest) -> dict[str, Any]:
        host = self.driver.call(lambda a, now_s: find_host(a, request.params))
        text = "gets no new leases; its GPUs are taken back" if request.path == "drain" else "is in use again"
        return self._carry_out(request, host, f"{host} {text}")

    def _boost(self, request: RestRequest) -> dict[str, Any]:
        for_s = whole_number(request.params, "for_s", -1, 0, BOOST_MAX_S)
        if for_s < 0:
            raise Refusal(400, "for_s: is missing; give the seconds that the boost lasts, 0 to end it")
        target, known = self.driver.call(lambda a, _: (x := find_target(a, request.params), x in a.durable.boosts))
        if not for_s and not known:
            raise Refusal(409, f"boost: {target} has none")
        text = f"{target} comes first in its virtual cluster for {for_s / 3600:g} h; what runs keeps its leases"
        return self._carry_out(request, target, text if for_s else f"{target} is boosted no more", for_s=for_s)

    def _apply_cells(self, request: RestRequest) -> dict[str, Any]:
        """Reads the cells file again; what runs continues, as borrowed where its queue owns it no more."""
        if self.read_cells is None:
            raise Refusal(409, "cells: isonomy.yaml names no cells file; add `cells: FILE` and start again")
        with self._applying:  # else of two, the one that read the file first might apply it last
            try:
                layout, policies, back, in_force = self.read_cells(request.params.get("file", ""))
            except ConfigError as error:
                raise Refusal(400, "; ".join(error.lines)) from error

            def apply(a: Arbiter, now_s: float) -> tuple[list[str], list[str], list[str]]:
                before = cells_view.deals(a)
                borrowing = a.reconfigure(layout, now_s, policies, request.user)
                in_force()
                return borrowing, sorted(before - cells_view.deals(a)), cells_view.without_queue(a)

            borrowing, over, idle = self.driver.call(apply)
        self.pictures.expire()
        self._must_last(request)
        text = "the cells are as the file says; all that runs continues"
        if borrowing:
            text += f", and these apps now borrow what they owned: {', '.join(borrowing)}"
        if over:
            text += f"; exchange has ended for {', '.join(over)}: the file has no cells for it any more"
        if idle:
            text += f"; YARN has no leaf queue {', '.join(idle)}: nobody can use its cells until it has"
        text += f"; the way back: {back}" * bool(back)
        found = {"borrowing": borrowing, "deals_over": over, "back": back}
        return {"ok": True, "verb": request.path, **found, "text": text}

    def _exchange(self, request: RestRequest) -> dict[str, Any]:
        """An offer, a request or a withdrawal; the answer says what became of it."""
        posted = self.driver.call(lambda a, now_s: cells_view.posting(a, now_s, request.path, request.params))
        if not request.user or request.user not in self.traders.get(posted.vc, ()):
            self._need_admin(request)
        self.driver.call(lambda a, now_s: cells_view.check(a, now_s, posted))
        self.driver.submit(posted)
        outcome = self.driver.call(lambda a, now_s: cells_view.outcome(a, posted))
        self.pictures.expire()
        self._must_last(request)
        return outcome

    def _set_limits(self, request: RestRequest) -> dict[str, Any]:
        read = partial(budget.command, path=request.path, params=request.params, user=request.user)
        with self._applying:  # else the later of two would take back what the earlier set
            given = self.driver.call(read)
            return self._carry_out(request, given.target, budget.text_of(given), values=given.values)

    def _switch(self, request: RestRequest) -> dict[str, Any]:
        text = "rounds stop and leases stand still" if request.path == "pause" else "rounds are held again"
        return self._carry_out(request, "", text)
