"""REST answers match docs/rest.json: added, removed or changed fields are detected."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pycontrol.policies import registry
from tests.schema import misfits
from tests.web import rest

SCHEMAS: dict[str, Any] = json.loads((rest.DOCS / "rest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    return rest.traded() | rest.answers(busy_one())


def busy_one() -> rest.Stage:
    """Another cluster than those that were documented."""
    return rest.busy(registry.make("isonomy"), apps=20, hours=3, seed=11)


@pytest.mark.parametrize("path", rest.ANSWERED)
def test_answers_are_as_documented(found: dict[str, list[Any]], path: str) -> None:
    wrong = {m for answer in found[path] for m in misfits(answer, SCHEMAS[path], path)}
    assert not wrong, "document them: python -m tests.web.rest"


def test_an_added_removed_or_changed_field_is_detected(found: dict[str, list[Any]]) -> None:
    answer = copy.deepcopy(found["queue"][0])
    app = answer["apps"][0]
    app["app_id"], app["surprise"] = 7, 1
    del app["user"]
    assert misfits(answer, SCHEMAS["queue"], "queue") == [
        "queue.apps[].user: is missing",
        "queue.apps[].surprise: is not documented",
        "queue.apps[].app_id: number, not string",
    ]


def test_the_page_is_that_of_the_schemas() -> None:
    assert (rest.DOCS / "rest.md").read_text(encoding="utf-8") == rest.page(SCHEMAS)


def test_every_path_is_documented_with_all_of_its_parameters() -> None:
    routes = rest.router_of(busy_one()).routes
    methods = dict.fromkeys(rest.PATHS, "GET") | dict.fromkeys(rest.POSTS, "POST")
    assert {path: route.method for path, route in routes.items()} == methods
    for path, route in routes.items():
        text = rest.POSTS["exchange-offer"] * path.startswith("exchange-re") + (rest.PATHS | rest.POSTS)[path]
        of_requests = {"in_return", "expires_in_s"} if path == "exchange-offer" else set()
        assert not [p for p in route.params - of_requests if f"`{p}`" not in text], path
