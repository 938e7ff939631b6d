"""Only the owner's own methods change a part of the Arbiter's state: other code that changes it is found here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycontrol.arbiter.views.settings import Settings
from tests.arbiter.mini import Mini

pytestmark = pytest.mark.interpreted
ROOT = Path(__file__).parents[2] / "pycontrol"
OWNERS = {
    "cluster": "cluster_view.py",
    "agents": "agents.py",
    "ledger": "durable.py",
    "durable": "durable.py",
    "gpus": "gpu_index.py",
    "groups": "gpu_supply.py",
    "workers": "workers.py",
    "timer": "settings.py",
    "candidates": "candidates.py",
    "eligibility": "eligibility.py",
}
CHANGES = {
    "add",
    "append",
    "clear",
    "difference_update",
    "discard",
    "drop",
    "extend",
    "insert",
    "pop",
    "popitem",
    "put",
    "remove",
    "setdefault",
    "take",
    "update",
}


def owner_of(node: ast.AST) -> str:
    """`gpus` for `s.gpus.free`, `self.gpus.free[x]` and calls on them; empty if no owner's part is named."""
    if isinstance(node, ast.Subscript | ast.Call | ast.Starred):
        return owner_of(node.func if isinstance(node, ast.Call) else node.value)
    if not isinstance(node, ast.Attribute):
        return ""
    inner = node.value
    return inner.attr if isinstance(inner, ast.Attribute) and inner.attr in OWNERS else owner_of(inner)


def changed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, owner) of each assignment to an owner's part and of each in-place change."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [t for x in node.targets for t in (x.elts if isinstance(x, ast.Tuple) else [x])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        for target in targets:
            if owner_of(target):
                yield node.lineno, owner_of(target)


def test_an_owners_parts_are_changed_only_in_its_own_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} changes a part of {owner}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, owner in changed(ast.parse(path.read_text()))
        if path.name != OWNERS[owner]
    ]
    assert not found


@pytest.mark.parametrize(
    ("code", "owner"),
    [
        ("s.cluster.ready = True", "cluster"),
        ("self.s.agents.unmet[a] = None", "agents"),
        ("s.gpus.free.take(gpu)", "gpus"),
        ("del s.groups.shrunk[x]", "groups"),
        ("a.durable.leases.pop(gpu)", "durable"),
        ("s.timer.idle_rounds += 1", "timer"),
        ("x, s.cluster.seen = 1, 2", "cluster"),
        ("s.cluster.apps.get(a).update(b)", "cluster"),
    ],
)
def test_changes_from_outside_are_detected(code: str, owner: str) -> None:
    assert list(changed(ast.parse(code))) == [(1, owner)]


@pytest.mark.parametrize(
    "code", ["x = s.cluster.apps", "s.agents.forget(a)", "found.update(s.cluster.closed)", "s.cluster = x"]
)
def test_reading_and_querying_an_owner_are_not_changes(code: str) -> None:
    assert not list(changed(ast.parse(code)))


def test_each_owner_checks_itself() -> None:
    m = Mini(settings=Settings(recovery_s=0))
    parts = {**vars(m.a.holdings), **vars(m.a.rounds)}
    assert all(hasattr(parts[name], "validate") for name in OWNERS if name not in ("durable", "timer"))


@pytest.mark.parametrize("name", ["candidates", "eligibility", "resolve"])
def test_what_only_decides_knows_no_clerk(name: str) -> None:
    """Without the clerk no fact is recorded, no effect sent and no round requested."""
    assert "clerk" not in (ROOT / "arbiter" / "round" / f"{name}.py").read_text().lower()
