"""What a user can name does not grow."""

from __future__ import annotations

from pycontrol.cli import OPTIONS
from tests.surface import MOST, counts, surface, written


def test_the_surface_is_no_larger_than_it_was() -> None:
    found = counts(surface())
    larger = {kind: n for kind, n in found.items() if n > MOST[kind]}
    assert not larger, f"take one away for each that is added ({MOST}); python -m tests.surface names all"
    assert all(found[kind] for kind in MOST), "a kind is not found any more"


def test_the_table_by_which_typos_are_refused_has_all_options() -> None:
    assert OPTIONS.read_text(encoding="utf-8") == written(), "write it anew: python -m tests.surface"
