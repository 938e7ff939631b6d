"""Finds the code that determines an experiment's findings, and hashes it to detect stale results.

An experiment's code is its function, and every function, class (with all methods) and constant of this package that it
names, directly or indirectly. Policies are loaded by name: those that the experiment's own modules name are included.
Comments, docstrings, layout and functions' annotations have no effect and are left out. Names that the package gives
are hashed as numbers in order of first use, and `module.name` as the name alone: a renamed function, a renamed or a
moved module determine the same findings.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pycontrol
from pycontrol.lab.catalogue import EXPERIMENTS
from pycontrol.policies.registry import POLICIES

PACKAGE = "pycontrol"
REGISTRIES = frozenset({"pycontrol.policies.registry", "pycontrol.lab.catalogue"})
"""Modules that are not followed, because they name everything and load what others request."""
COMPILED = {"pycontrol.auction.native": (".c", ".h")}
"""Modules that load compiled code, and the suffixes of its sources next to them."""
_IDENTIFIERS = frozenset({"id", "attr", "arg", "name", "names", "kwd_attrs", "rest"})
"""Fields of syntax nodes that contain names."""
Named = tuple[str, str]
"""(module, name at its top level)."""


@dataclass(frozen=True)
class Module:
    """A source file, as the names that it binds at its top level."""

    name: str
    binds: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """{local name: (module, name there)}; None: the module itself."""
    runs: list[ast.stmt] = field(default_factory=list)
    """Statements that bind nothing."""


class PackageTree:
    """The package under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module | None] = {}
        self.needs: dict[ast.stmt, list[Named]] = {}

    def file(self, name: str) -> Path | None:
        """A module's source file; None for a module outside the package."""
        parts = name.split(".")
        if parts[0] != PACKAGE:
            return None
        at = self.root.joinpath(*parts[1:])
        return next((f for f in (at / "__init__.py", at.with_suffix(".py")) if f.is_file()), None)

    def module(self, name: str) -> Module | None:
        """A module, read once."""
        if name not in self.modules:
            file = self.file(name)
            self.modules[name] = None if file is None else _module(name, file.read_text(encoding="utf-8"))
        return self.modules[name]

    def reached(self, first: Named) -> dict[Named, list[ast.stmt]]:
        """A definition and all that it names, directly or indirectly; "" names statements that bind nothing."""
        found: dict[Named, list[ast.stmt]] = {}
        todo = [first]
        while todo:
            at = todo.pop()
            module = self.module(at[0])
            if module is None or at in found:
                continue
            name = at[1]
            if name in module.imports:
                todo += self._import(*module.imports[name])
                continue
            statements = module.runs if name == "" else module.binds.get(name)
            if statements is None:
                continue
            found[at] = statements
            todo.append((module.name, ""))
            for statement in statements:
                if statement not in self.needs:
                    self.needs[statement] = list(self._needs(module, statement))
                todo += self.needs[statement]
        return found

    def _import(self, of: str, name: str | None) -> Iterator[Named]:
        if name is not None and self.file(f"{of}.{name}") is None:
            yield of, name
            return
        whole = self.module(of if name is None else f"{of}.{name}")
        if whole is not None:
            yield from ((whole.name, one) for one in (*whole.binds, *whole.imports, ""))

    def _needs(self, module: Module, node: ast.AST) -> Iterator[Named]:
        """The names that a piece of code uses; of an imported module, only the attributes that it uses."""
        if isinstance(node, ast.Attribute):
            there = self._module_of(module, node.value)
            if there is not None and self.file(f"{there}.{node.attr}") is None:
                yield there, node.attr
                return
        elif isinstance(node, ast.Name):
            yield module.name, node.id
        elif isinstance(node, ast.Constant) and _loads_by_name(module.name) and node.value in POLICIES:
            of, _, name = POLICIES[str(node.value)].partition(":")
            yield of, name
        for child in ast.iter_child_nodes(node):
            yield from self._needs(module, child)

    def modules_in(self, module: str) -> frozenset[str]:
        """The names by which a module knows others of the package."""
        at = self.module(module)
        named = {} if at is None else {name: f"{of}.{one}" for name, (of, one) in at.imports.items() if one is not None}
        return frozenset(name for name, whole in named.items() if self.file(whole) is not None)

    def _module_of(self, module: Module, node: ast.AST) -> str | None:
        """The package's module that an expression names; None for any other expression."""
        if isinstance(node, ast.Attribute):
            outer = self._module_of(module, node.value)
            inner = None if outer is None else f"{outer}.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in module.imports:
            of, name = module.imports[node.id]
            inner = of if name is None else f"{of}.{name}"
        else:
            return None
        return inner if inner is not None and self.file(inner) is not None else None


def code_hash(name: str, root: Path | None = None) -> str:
    """The hash of the code that determines an experiment's findings; `root`: the package's folder."""
    at = root or Path(pycontrol.__file__).parent
    module, _, function = EXPERIMENTS[name].partition(":")
    files = tuple((f, f.stat().st_mtime_ns) for f in sorted(at.rglob("*.py")))
    tree = _tree(at, files)
    found = tree.reached((module, function))
    code = [(s, tree.modules_in(of)) for (of, _), statements in found.items() for s in statements]
    digest = hashlib.sha256("\0".join(_tokens(code)).encode())
    for of in sorted({of for of, _ in found} & COMPILED.keys()):
        folder = at.joinpath(*of.split(".")[1:-1])
        for file in sorted(f for f in folder.iterdir() if f.suffix in COMPILED[of]):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=2)
def _tree(root: Path, files: tuple[tuple[Path, int], ...]) -> PackageTree:
    """The package as it is while these files are (file, change in ns)."""
    return PackageTree(root)


def commit_of(root: Path | None = None) -> str:
    """The checked-out commit, with a plus if files have changed since; "unknown" outside a checkout."""
    at = (root or Path(pycontrol.__file__).parent).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=at, capture_output=True, text=True, check=True, timeout=30).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", PACKAGE).strip()
        return git("rev-parse", "--short=10", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _loads_by_name(module: str) -> bool:
    """Not workloads: `tiresias` is a format of traces there."""
    lab = f"{PACKAGE}.lab."
    return module.startswith(lab) and not module.startswith(f"{lab}workloads.") and module not in REGISTRIES


def _tokens(code: Sequence[tuple[ast.stmt, frozenset[str]]]) -> Iterator[str]:
    """The code, (statement, names of modules in it), as words, with a number for each name that it binds itself."""
    own = {name for s, _ in code for name in _bound_in(s)} - set(dir(builtins))
    numbers: dict[str, str] = {}
    for statement, modules in code:
        for name, word in _words(statement, modules):
            yield numbers.setdefault(name, f"#{len(numbers)}") if name in own else word


@functools.cache
def _words(statement: ast.stmt, modules: frozenset[str]) -> list[tuple[str | None, str]]:
    """(the name that it is, if it is one, the word), in order; most experiments share most of their code."""
    found: list[tuple[str | None, str]] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            node = ast.Name(node.attr, node.ctx)
        found.append((None, type(node).__name__))
        for name, value in ast.iter_fields(node):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    walk(one)
                else:
                    found.append((one if name in _IDENTIFIERS and isinstance(one, str) else None, repr(one)))
        found.append((None, "."))

    walk(statement)
    return found


@functools.cache
def _bound_in(statement: ast.stmt) -> frozenset[str]:
    return frozenset(name for node in ast.walk(statement) for name in _bound_at(node))


def _bound_at(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr


class _Meaning(ast.NodeTransformer):
    """Removes the parts of the code that have no effect."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove docstrings, also those of fields."""
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """Remove blocks for type checkers."""
        typing = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if typing else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Remove an argument's annotation."""
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove a function's return annotation."""
        bare = ast.FunctionDef(node.name, node.args, node.body, node.decorator_list)
        return self.generic_visit(bare)


@functools.cache
def _module(name: str, text: str) -> Module:
    tree: ast.Module = _Meaning().visit(ast.parse(text))
    found = Module(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.imports.update({a.asname or a.name: (node.module, a.name) for a in node.names})
        elif isinstance(node, ast.Import):
            found.imports.update({a.asname or a.name.partition(".")[0]: _imported(a) for a in node.names})
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        bound = list(_binds(statement))
        for one in bound:
            found.binds.setdefault(one, []).append(statement)
        if not bound:
            found.runs.append(statement)
    return found


def _imported(alias: ast.alias) -> tuple[str, str | None]:
    return (alias.name, None) if alias.asname else (alias.name.partition(".")[0], None)


def _binds(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement at a module's top binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
