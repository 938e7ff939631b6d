"""The REST resource /ws/v1/cluster/isonomy/*, behind the ResourceManager's authentication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.driver import Driver
from pycontrol.arbiter.facts import AppRecord
from pycontrol.model.events import OperatorCommand
from pycontrol.web import metrics, views

Answer = tuple[int, dict[str, Any]]
ROUNDS_DEFAULT, ROUNDS_MAX = 10, 200
CALL_S = 5.0


class Router:
    """A closed table of routes; nothing outside it is reachable."""

    def __init__(
        self,
        driver: Driver,
        issue: Callable[[str, str], str],
        arbiter_address: str,
        ca: str = "",
        token_ttl_s: float = 0.0,
    ) -> None:
        self._driver, self._issue = driver, issue
        self._arbiter_address, self._ca, self._token_ttl_s = arbiter_address, ca, token_ttl_s
        self._gets: dict[str, Callable[[Arbiter, float, Mapping[str, str]], Answer]] = {
            "status": lambda a, now, p: (200, views.status(a, now)),
            "queue": lambda a, now, p: (200, views.queue(a, now)),
            "apps": lambda a, now, p: (200, views.apps(a, now)),
            "leases": lambda a, now, p: (200, views.leases(a, now)),
            "rounds": self._rounds,
            "explain": self._of_app(lambda a, now, app: views.explain(a, app, now)),
            "logs": self._of_app(lambda a, now, app: views.logs(a, app)),
            "metrics": lambda a, now, p: (200, {"text": metrics.render(a)}),
        }
        self._posts = ("kill", "drain", "undrain", "pause", "resume")

    def handle(self, method: str, path: str, params: Mapping[str, str], user: str, admin: bool) -> Answer:
        """(HTTP status, JSON object)."""
        path = path.strip("/")
        try:
            if path == "token":
                return self._token(params, user)
            if method == "GET" and path in self._gets:
                return self._driver.call(lambda a, now: self._gets[path](a, now, params), CALL_S)
            if method == "POST" and path in self._posts:
                return self._post(path, params, user, admin)
        except TimeoutError:
            return 503, {"error": "the Arbiter is busy; try again"}
        if path in self._gets or path in self._posts:
            return 405, {"error": f"{path} does not take {method}"}
        return 404, {"error": f"no resource {path!r}; there are {', '.join([*self._gets, *self._posts, 'token'])}"}

    def _rounds(self, a: Arbiter, now_s: float, params: Mapping[str, str]) -> Answer:
        text = params.get("n", str(ROUNDS_DEFAULT))
        if not text.isdigit() or not 1 <= int(text) <= ROUNDS_MAX:
            return 400, {"error": f"n must be a whole number from 1 to {ROUNDS_MAX} (got {text!r})"}
        return 200, views.rounds(a, int(text))

    def _of_app(
        self, view: Callable[[Arbiter, float, AppRecord], dict[str, Any]]
    ) -> Callable[[Arbiter, float, Mapping[str, str]], Answer]:
        def route(a: Arbiter, now_s: float, params: Mapping[str, str]) -> Answer:
            app = views.find_app(a, params.get("app", ""))
            if app is None:
                return 404, {"error": f"no app {params.get('app', '')!r} has asked for GPUs; see isonomy queue"}
            return 200, view(a, now_s, app)

        return route

    def _token(self, params: Mapping[str, str], user: str) -> Answer:
        """Bound to the authenticated user: the Arbiter compares it with the app's user when its Agent comes."""
        app_id = params.get("app", "")
        if not app_id.startswith("application_"):
            return 400, {"error": f"app must be an application id (got {app_id!r})"}
        if not user:
            return 401, {
                "error": "the ResourceManager did not say who asks; with simple authentication add user.name"
            }
        owner = self._driver.call(lambda a, now: a.yarn_apps.get(app_id), CALL_S)
        if owner is not None and owner.user != user:
            return 403, {"error": f"{app_id} belongs to {owner.user}, not to {user}"}
        return 200, {
            "token": self._issue(app_id, user),
            "arbiter": self._arbiter_address,
            "ca": self._ca,
            "ttl_s": self._token_ttl_s,
        }

    def _post(self, verb: str, params: Mapping[str, str], user: str, admin: bool) -> Answer:
        target, problem = "", None
        if verb == "kill":
            app = self._driver.call(lambda a, now: views.find_app(a, params.get("app", "")), CALL_S)
            if app is None:
                return 404, {"error": f"no app {params.get('app', '')!r}; see isonomy queue"}
            target = app.app_id
            admin = admin or (bool(user) and user == app.user)
        elif verb in ("drain", "undrain"):
            target = params.get("node", "")
            hosts = self._driver.call(lambda a, now: {n.host for n in a.nodes.values()}, CALL_S)
            if target not in hosts:
                problem = f"no node {target!r}; there are {', '.join(sorted(hosts)) or 'none'}"
        if not admin:
            return 403, {"error": f"{user or 'nobody'} may not {verb}: not in YARN's admin ACL (yarn.admin.acl)"}
        if problem:
            return 404, {"error": problem}
        self._driver.submit(OperatorCommand(verb, target, user))
        return 200, {"done": verb, "target": target}
