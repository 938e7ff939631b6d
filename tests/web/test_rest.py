"""REST answers are what docs/rest.json says: no field goes, comes or changes its type unseen."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pycontrol.policies import registry
from tests.web import rest

SCHEMAS: dict[str, Any] = json.loads((rest.DOCS / "rest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    return rest.answers(busy_one())


def busy_one() -> rest.Stage:
    """Another cluster than those that were documented."""
    return rest.busy(registry.make("isonomy"), apps=20, hours=3, seed=11)


@pytest.mark.parametrize("path", rest.PATHS)
def test_answers_are_as_documented(found: dict[str, list[Any]], path: str) -> None:
    wrong = {m for answer in found[path] for m in rest.misfits(answer, SCHEMAS[path], path)}
    assert not wrong, "document them: python -m tests.web.rest"


def test_a_field_that_goes_comes_or_changes_is_seen(found: dict[str, list[Any]]) -> None:
    answer = copy.deepcopy(found["queue"][0])
    app = answer["apps"][0]
    app["app_id"], app["surprise"] = 7, 1
    del app["user"]
    assert rest.misfits(answer, SCHEMAS["queue"], "queue") == [
        "queue.apps[].user: is missing",
        "queue.apps[].surprise: is not documented",
        "queue.apps[].app_id: number, not string",
    ]


def test_the_page_is_that_of_the_schemas() -> None:
    assert (rest.DOCS / "rest.md").read_text(encoding="utf-8") == rest.page(SCHEMAS)
