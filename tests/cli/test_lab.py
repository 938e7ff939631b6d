"""The product and its laboratory."""

from __future__ import annotations

import re
from pathlib import Path

PRODUCT = Path(__file__).resolve().parents[2] / "pycontrol"
DOORS = {"cli/__init__.py", "policies/registry.py"}


def test_only_the_doors_name_the_laboratory() -> None:
    files = {f.relative_to(PRODUCT).as_posix(): f for f in PRODUCT.rglob("*.py")}
    product = [name for name in files if not name.startswith("lab/")]
    named = re.compile(r"pycontrol\.lab\b|\"\.lab\.")
    assert {name for name in product if named.search(files[name].read_text(encoding="utf-8"))} == DOORS
