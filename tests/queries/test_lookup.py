"""The app that a caller's text names: never one whose name or id is only similar."""

from __future__ import annotations

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import AppArrived, AppEnded
from pycontrol.arbiter.views.settings import Settings
from pycontrol.policies.themis import Themis
from pycontrol.queries.lookup import Refusal, find_app

IDS = {
    "application_7_0002": "train",
    "application_7_0012": "eval",
    "application_7_0122": "train",
    "application_9_0002": "digits",
    "application_9_0030": "application_9_0031",
    "application_9_0031": "12",
}
ENDED = {"application_7_0002"}


@pytest.fixture
def arbiter() -> Arbiter:
    made = Arbiter(Settings(), Themis())
    for app_id, name in IDS.items():
        made.clerk.record(AppArrived(app_id, name, "root.q", "ann", "job", 90.0, 90.0))
        if app_id in ENDED:
            made.clerk.record(AppEnded(app_id, "SUCCEEDED", 95.0))
    return made


@pytest.mark.parametrize(
    ("text", "app_id"),
    [
        ("application_7_0012", "application_7_0012"),
        ("application_9_0031", "application_9_0031"),  # an id before a name
        ("eval", "application_7_0012"),
        ("train", "application_7_0122"),  # the only one of the name that has not ended
        ("0122", "application_7_0122"),
        ("122", "application_7_0122"),
        ("7_0012", "application_7_0012"),
        ("2", "application_9_0002"),  # the other one has ended; 12 and 122 are only similar
        ("30", "application_9_0030"),
    ],
)
def test_an_app_is_found_by_id_by_number_or_by_name(arbiter: Arbiter, text: str, app_id: str) -> None:
    assert find_app(arbiter, {"app": text}) == app_id


@pytest.mark.parametrize("text", ["22", "0", "_0012", "application", "n_7_0012", "²", "tra", "0022"])
def test_text_that_matches_no_app_is_refused(arbiter: Arbiter, text: str) -> None:
    with pytest.raises(Refusal, match="no application"):
        find_app(arbiter, {"app": text})


def test_a_name_that_equals_anothers_number_is_refused_as_ambiguous(arbiter: Arbiter) -> None:
    with pytest.raises(Refusal, match="12 names 2 applications"):
        find_app(arbiter, {"app": "12"})
