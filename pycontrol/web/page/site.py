"""What a browser gets below `ui`: the pages and their files.

App names, configurations and messages are anybody's text: templates escape everything, and the browser is told to run
no script and no style but the files served here.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import queue
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pycontrol.queries.lookup import Refusal
from pycontrol.runtime.driver import Overloaded
from pycontrol.web.page import Read, app, cluster_page, text

HTML = "text/html; charset=utf-8"
FILES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "uplot-1.6.32.min.js": "text/javascript; charset=utf-8",
    "uplot-1.6.32.min.css": "text/css; charset=utf-8",
    "uplot-1.6.32.LICENSE.txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " frame-ancestors 'self'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
KEPT_S = 86400


class Page:
    """Answers GETs below `ui`; from any thread."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("pycontrol.web.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(text.FILTERS)

    def answer(self, method: str, path: str, params: Mapping[str, str], read: Read) -> tuple[int, dict[str, Any]]:
        """(HTTP status, {"content_type", "text", "headers"})."""
        parts = path.strip("/").split("/")[1:]
        root = "../" * path.count("/")
        try:
            if method != "GET":
                raise Refusal(405, "the page is read-only: it needs GET")
            if parts[:1] == ["static"]:
                return 200, _file(parts)
            if not parts:
                return 200, self._html("cluster.html", root, cluster_page.model(read, params))
            if parts[0] == "app" and len(parts) == 2 and parts[1]:
                return 200, self._html("app.html", root, app.model(read, parts[1]))
            if parts == ["usage"]:
                return 200, self._html("usage.html", root, {"title": "Usage", **read("usage", params)})
            if parts[0] == "app" and parts[2:] == ["why-not"]:
                names = {r["app_id"]: r["name"] for r in read("queue", {})["apps"]}
                return 200, self._html("why_not.html", root, read("why-not", {"app": parts[1]}) | {"names": names})
            raise Refusal(404, f"there is no page {path}")
        except Refusal as e:
            return e.status, self._html("problem.html", root, {"problem": str(e)})
        except (TimeoutError, queue.Full, Overloaded):
            return 503, self._html("problem.html", root, {"problem": "the control plane is busy; try again"})

    def _html(self, template: str, root: str, model: Mapping[str, Any]) -> dict[str, Any]:
        """`root`: the way from the page to the folder that holds `ui`."""
        page = self._templates.get_template(template).render(
            root=root, static=f"{root}ui/static/{version()}", colours=range(text.COLOURS), **model
        )
        return {"content_type": HTML, "text": page, "headers": HEADERS}


def _file(parts: list[str]) -> dict[str, Any]:
    kind = FILES.get(parts[2]) if len(parts) == 3 else None
    if kind is None:
        raise Refusal(404, "there is no such file")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": f"max-age={KEPT_S}"}
    return {"content_type": kind, "text": _read_file(parts[2]), "headers": headers}


@functools.cache
def _read_file(name: str) -> str:
    return (importlib.resources.files("pycontrol.web.page") / "static" / name).read_text(encoding="utf-8")


@functools.cache
def version() -> str:
    """Part of the files' addresses: another one when they change, so that no browser keeps old ones."""
    return hashlib.sha256("".join(_read_file(name) for name in FILES).encode()).hexdigest()[:10]
