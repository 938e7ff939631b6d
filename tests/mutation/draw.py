"""Mutants that a program draws by a seed: `python -m tests.mutation.draw` plays them.

A mutant is one change of one place: a comparison or a sign is another one, a number is one more, `and` is `or`, a
condition is negated, a statement is dropped. The list, `drawn.json`, is kept. For each it names the test that fails
with it (`found_by`), or says in one sentence why nobody can tell it from the code (`equivalent`). Each is played in a
process of its own by its test; where that passes, or none is named, by the tests that import its module, nearest first,
in a limited time, and the one that fails is kept in the list.
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
COUNT, EQUIVALENT_MAX = 60, 6
PLACE = ("file", "kind", "source", "nth")
"""What tells a mutant from others; the rest of its row says how it was found."""
NOT_FOUND = (0, 4, 5)
"""What pytest ends with if nothing failed: all passed, there is no such test, there is none at all."""
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
        if {"file": mutant["file"], **place} == place_of(mutant):
            change(mutant["kind"], node)
            return ast.unparse(ast.fix_missing_locations(tree))
    raise ValueError(f"{mutant} is not there any more; draw another list")


def tests_for(file: str) -> list[str]:
    """The files of tests that import the module, those of the same name and folder first; then others of its folder."""
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
    found.sort(key=lambda name: folder not in name.split("/"))
    return [*found, *near][:FILES_MAX]


def kept() -> list[dict[str, Any]]:
    """The list."""
    return list(json.loads(LIST.read_text()))


def keep(mutants: list[dict[str, Any]]) -> None:
    """Writes the list, a row for each."""
    LIST.write_text("[\n" + ",\n".join(json.dumps(m) for m in mutants) + "\n]\n")


def place_of(mutant: dict[str, Any]) -> dict[str, Any]:
    """Its row without what is known of it."""
    return {k: mutant[k] for k in PLACE}


def mended(seed: int) -> list[dict[str, Any]]:
    """The kept list, where each mutant whose place is gone is the seed's next draw from the present code."""
    rows = [m if is_there(m) else None for m in kept()]
    rows += [None] * (COUNT - len(rows))
    places = [place_of(m) for m in rows if m is not None]
    new = iter([m for m in draw(seed, 2 * COUNT) if m not in places])
    return [m or next(new) for m in rows]


def is_there(mutant: dict[str, Any]) -> bool:
    """Whether its place still is in the folders that mutants are drawn from."""
    try:
        return mutant["file"].split("/")[1] in FOLDERS and bool(mutated(mutant))
    except (ValueError, OSError):
        return False


def play(mutant: dict[str, Any], limit_s: float) -> tuple[str, str]:
    """("found", by what), ("survives", by how many files) or ("late", where)."""
    begun_s, tests = time.monotonic(), tests_for(mutant["file"])
    if "found_by" in mutant:
        tests.insert(0, mutant["found_by"])
    for at, test in enumerate(tests):
        left_s = limit_s - (time.monotonic() - begun_s)
        if left_s < 5:
            return "late", f"after {at} of {len(tests)}"
        command = [sys.executable, "-m", "tests.mutation.draw", "--one", json.dumps(mutant), test]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left_s, check=False)
        except subprocess.TimeoutExpired:
            return "late", f"in {test}"
        if done.returncode not in NOT_FOUND:
            failed = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
            return "found", failed[2].split("[")[0] if failed is not None else test
    return "survives", f"{len(tests)} of them"


def main() -> int:
    """Draws the list, or plays all or some of it; 1 if any is not found that is not equivalent."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.draw", description=__doc__)
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw those anew whose place is gone")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each")
    parser.add_argument("numbers", nargs="*", help="these only, from 0")
    args = parser.parse_args()
    if args.draw is not None:
        keep(mended(args.draw))
        return 0
    if args.one is not None:
        mutant = json.loads(args.one)
        sys.meta_path.insert(0, Mutation(mutant["file"], mutated(mutant)))
        import pytest

        options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=60", "--hypothesis-profile=ci"]
        return int(pytest.main([*options, *args.numbers]))
    os.environ["PYTHONHASHSEED"] = "0"
    survived, mutants = 0, kept()
    for number, mutant in enumerate(mutants):
        if "equivalent" not in mutant and (not args.numbers or str(number) in args.numbers):
            verdict, by = play(mutant, args.limit)
            if verdict == "found":
                mutant["found_by"] = by
                keep(mutants)
            survived += verdict != "found"
            where = mutant["file"].removeprefix("pycontrol/")
            print(
                f"{number:2} {verdict:<9} {mutant['kind']:<10} {where:<40} {mutant['source'][:60]} | {by}", flush=True
            )
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
