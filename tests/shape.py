"""Counts what the house rules limit, for `make lint`: exits with status 1 and says which limit is exceeded.

The Arbiter is a few files on a few floors (a floor: the longest chain of imports within it). Tests reach into another
object's private parts (`x._y`) seldom: such a test breaks when code moves, not when it fails. A file of the product has
a name that no other has, so that the name alone says which one is meant.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
ARBITER = "pycontrol.arbiter"
PRODUCT = ("pycontrol", "submarine_patch", "dev-cluster")
FILES_MAX, FLOORS_MAX, PRIVATE_MAX = 24, 9, 20
PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_exit"}
"""Names with an underscore that their libraries document."""


def files() -> list[Path]:
    """The Arbiter's files with code."""
    return [p for p in sorted((ROOT / "pycontrol" / "arbiter").rglob("*.py")) if p.read_text().strip()]


def floors() -> int:
    """The length of the longest chain of imports within the Arbiter."""
    graph = grimp.build_graph("pycontrol", cache_dir=None)

    @cache
    def floor(module: str) -> int:
        below = graph.find_modules_directly_imported_by(module)
        return 1 + max((floor(m) for m in below if m.startswith(f"{ARBITER}.")), default=0)

    return max(floor(m) for m in graph.modules if m.startswith(f"{ARBITER}."))


def private(tree: ast.AST) -> Iterator[int]:
    """The lines that name a private part of an object other than `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            of = node.value.func if isinstance(node.value, ast.Call) else node.value
            own = isinstance(of, ast.Name) and of.id in ("self", "cls", "super")
            if not own and node.attr not in PUBLIC:
                yield node.lineno


def repeated() -> list[str]:
    """The product's Python files whose name another one has, too; not those that Python names (`__init__.py`)."""
    files = [p for folder in PRODUCT for p in (ROOT / folder).rglob("*.py") if not p.name.startswith("__")]
    count = Counter(p.name for p in files)
    return sorted(str(p.relative_to(ROOT)) for p in files if count[p.name] > 1)


def uses_of_private(paths: Iterable[Path]) -> list[str]:
    """FILE:LINE of each use of another object's private part."""
    return [f"{p.relative_to(ROOT)}:{line}" for p in paths for line in sorted(private(ast.parse(p.read_text())))]


def main() -> int:
    """Prints the counts; returns 1 if one is too large."""
    uses, same = uses_of_private(sorted((ROOT / "tests").rglob("*.py"))), repeated()
    found = {
        "files of pycontrol.arbiter": (len(files()), FILES_MAX),
        "floors of pycontrol.arbiter": (floors(), FLOORS_MAX),
        "uses of another object's ._x in tests": (len(uses), PRIVATE_MAX),
        "files of the product whose name occurs twice": (len(same), 0),
    }
    for what, (count, most) in found.items():
        print(f"{what}: {count}, at most {most}")
    if len(uses) > PRIVATE_MAX:
        print(*uses, sep="\n")
    if same:
        print(*same, sep="\n")
    return int(any(count > most for count, most in found.values()))


if __name__ == "__main__":
    sys.exit(main())
