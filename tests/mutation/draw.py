"""Mutants that a program draws by a seed: `python -m tests.mutation.draw` plays them.

A mutant is one change of one place: a comparison or a sign is another one, a number is one more, `and` is `or`, a
condition is negated, a statement is dropped. The list, `drawn.json`, is kept, so that what survived can be told before
and after a test was added. Each is played in processes of its own by the tests that import its module, nearest first,
in a limited time.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.mutants import ROOT, Mutation

LIST = Path(__file__).with_name("drawn.json")
FOLDERS = ("arbiter", "runtime", "bridge", "rpc", "cells", "policies")
SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
FILES_MAX = 8
"""The most files of tests for a mutant."""


def places(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """(kind, node) of what can be changed; not in annotations, docstrings and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield "comparison", node
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield "sign", node
        elif isinstance(node, ast.BoolOp):
            yield "and/or", node
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield "negated", node
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield "number", node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield "dropped", node


def change(kind: str, node: Any) -> None:
    """Makes the mutant in the tree."""
    if kind == "comparison":
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif kind in ("sign", "and/or"):
        node.op = SWAPS[type(node.op)]()
    elif kind == "negated":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "number":
        node.value += 1
    else:
        node.value = ast.Constant(None)


def draw(seed: int, count: int) -> list[dict[str, Any]]:
    """That many places by chance, each as likely as any other."""
    every = [
        {"file": str(path.relative_to(ROOT)), **place}
        for folder in FOLDERS
        for path in sorted((ROOT / "pycontrol" / folder).rglob("*.py"))
        if "conformance" not in path.parts
        for place, _ in placed(path.read_text(), ast.parse(path.read_text()))
    ]
    return random.Random(seed).sample(every, count)


def placed(text: str, tree: ast.Module) -> Iterator[tuple[dict[str, Any], ast.AST]]:
    """(kind, line as text, the how manieth with both) and node of each place: true also where lines have moved."""
    lines, seen = text.splitlines(), Counter[tuple[str, str]]()
    for kind, node in places(tree):
        source = lines[getattr(node, "lineno", 1) - 1].strip()
        yield {"kind": kind, "source": source, "nth": seen[kind, source]}, node
        seen[kind, source] += 1


def mutated(mutant: dict[str, Any]) -> str:
    """The text of its module; ValueError if the place is not there any more."""
    text = (ROOT / mutant["file"]).read_text()
    tree = ast.parse(text)
    for place, node in placed(text, tree):
        if {"file": mutant["file"], **place} == mutant:
            change(mutant["kind"], node)
            return ast.unparse(ast.fix_missing_locations(tree))
    raise ValueError(f"{mutant} is not there any more; draw another list")


def tests_for(file: str) -> list[str]:
    """The files of tests that import the module, those of the same folder and name first; then others of its folder."""
    module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    stem, folder = module.rsplit(".", 1)[-1], file.split("/")[1]
    parent = module.rsplit(".", 1)[0]
    imports = re.compile(rf"from {re.escape(module)} import|from {re.escape(parent)} import .*\b{stem}\b")
    found, near = list[str](), list[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if "cluster" in path.parts or "pytest.mark.cluster" in text:
            continue
        if stem in path.stem and folder in path.parts:
            found.insert(0, name)
        elif imports.search(text):
            found.append(name)
        elif folder in path.parts:
            near.append(name)
    return [*found, *near][:FILES_MAX]


def mended(seed: int) -> list[dict[str, Any]]:
    """The kept list, where each mutant whose place is gone is the seed's next draw from the present code."""
    kept = [m if _is_there(m) else None for m in json.loads(LIST.read_text())]
    new = iter([m for m in draw(seed, 2 * len(kept)) if m not in kept])
    return [m or next(new) for m in kept]


def _is_there(mutant: dict[str, Any]) -> bool:
    try:
        return bool(mutated(mutant))
    except ValueError:
        return False


def play(mutant: dict[str, Any], limit_s: float) -> tuple[str, str]:
    """("found", by what), ("survives", by how many files) or ("late", where)."""
    begun_s, files = time.monotonic(), tests_for(mutant["file"])
    for at, file in enumerate(files):
        left_s = limit_s - (time.monotonic() - begun_s)
        if left_s < 5:
            return "late", f"after {at} of {len(files)} files"
        command = [sys.executable, "-m", "tests.mutation.draw", "--one", json.dumps(mutant), file]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left_s, check=False)
        except subprocess.TimeoutExpired:
            return "late", f"in {file}"
        if done.returncode not in (0, 5):
            failed = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
            return "found", failed[2] if failed is not None else done.stdout[-80:].strip() or done.stderr[-80:].strip()
    return "survives", f"{len(files)} files"


def main() -> int:
    """Draws the list, or plays all or some of it; 1 if any survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.draw", description=__doc__)
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw those anew whose place is gone")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each")
    parser.add_argument("numbers", nargs="*", help="these only, from 0")
    args = parser.parse_args()
    if args.draw is not None:
        LIST.write_text("[\n" + ",\n".join(json.dumps(m) for m in mended(args.draw)) + "\n]\n")
        return 0
    if args.one is not None:
        mutant = json.loads(args.one)
        sys.meta_path.insert(0, Mutation(mutant["file"], mutated(mutant)))
        import pytest

        return int(pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=60", *args.numbers]))
    os.environ["PYTHONHASHSEED"] = "0"
    survived = 0
    for number, mutant in enumerate(json.loads(LIST.read_text())):
        if not args.numbers or str(number) in args.numbers:
            verdict, by = play(mutant, args.limit)
            survived += verdict != "found"
            where = mutant["file"].removeprefix("pycontrol/")
            print(
                f"{number:2} {verdict:<9} {mutant['kind']:<10} {where:<40} {mutant['source'][:60]} | {by}", flush=True
            )
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
