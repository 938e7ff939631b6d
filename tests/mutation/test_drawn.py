"""The list of drawn mutants is complete: each is there, and is found by a test that is there, or is equivalent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.mutants import ROOT
from tests.mutation.draw import COUNT, EQUIVALENT_MAX, is_there, kept, place_of

MUTANTS = kept()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m['file'].removeprefix('pycontrol/')}: {m['source'][:40]}")
def test_it_is_there_and_it_is_known_who_finds_it(mutant: dict[str, Any]) -> None:
    assert is_there(mutant), "its place is gone: `python -m tests.mutation.draw --draw 37`, then play the new one"
    assert ("found_by" in mutant) != ("equivalent" in mutant), "play it; if it survives, write a test"
    if "found_by" in mutant:
        file, test = mutant["found_by"].split("::")
        assert f"def {test}(" in (ROOT / file).read_text()


def test_as_many_as_were_drawn_are_kept_and_few_are_equivalent() -> None:
    assert len({json.dumps(place_of(m)) for m in MUTANTS}) == COUNT
    assert sum("equivalent" in m for m in MUTANTS) <= EQUIVALENT_MAX
