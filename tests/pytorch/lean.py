"""Makes PyTorch importable without CUDA's libraries: for the tests, never for users.

PyPI has no CPU build of PyTorch for x86-64, and with its CUDA libraries it takes several gigabytes. Installed with
--no-deps it only lacks what its own libraries link against. For each of these a library is made here that exports
the symbols wanted, under the versions wanted; each function answers 100 (cudaErrorNoDevice), so that
torch.cuda.is_available() is False. Needs gcc and readelf.

    python lean.py SITE_PACKAGES/torch/lib
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

CUDA = re.compile(r"lib(cu\w+|nccl|nvrtc|nvshmem_host|nvJitLink|nvToolsExt)\.so(\.\d+)*$")
PYTHON = re.compile(r"_?Py")
NO_DEVICE = 100


@dataclass
class Wanted:
    """What the libraries of a folder want of others."""

    libraries: set[str] = field(default_factory=set)
    symbols: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By version; "" where they have none."""
    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By library."""


def _lines(option: str, library: Path) -> list[str]:
    words = ["readelf", "-W", option, str(library)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def wanted(folder: Path) -> Wanted:
    """CUDA's libraries and symbols as far as nothing in the folder has them."""
    found, here = Wanted(), set[str]()
    libraries = [f for f in sorted(folder.glob("*.so*")) if f.is_file() and not CUDA.match(f.name)]
    for library in libraries:
        for line in _lines("-d", library):
            name = re.search(r"\(NEEDED\).*\[(.+)\]", line)
            if name and CUDA.match(name[1]):
                found.libraries.add(name[1])
        file = ""
        for line in _lines("-V", library):  # of which library each version is
            file = told[1] if (told := re.search(r"Version: .*File: (\S+)", line)) else file
            if (version := re.search(r"Name: (\S+)\s+Flags", line)) and CUDA.match(file):
                found.versions[file].add(version[1])
        for line in _lines("--dyn-syms", library):
            words = line.split()
            if len(words) < 8 or not words[0].rstrip(":").isdigit():
                continue
            symbol, _, version = words[7].partition("@")
            if words[6] != "UND":
                here.add(symbol)
            elif words[4] == "GLOBAL":
                found.symbols[version.lstrip("@")].add(symbol)
    found.symbols[""] = {s for s in found.symbols[""] - here if not PYTHON.match(s)}
    return found


def build(folder: Path) -> None:
    """One library for each that is wanted; symbols without a version are in the first of them."""
    needs = wanted(folder)
    loose = needs.symbols.pop("", set())
    for name in sorted(needs.libraries):
        nodes = {v: needs.symbols[v] for v in needs.versions[name]}
        symbols = set().union(loose, *nodes.values())
        _compile(folder / name, symbols, nodes)
        loose = set()


def _compile(library: Path, symbols: set[str], nodes: dict[str, set[str]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text("".join(f"long {s}(void) {{ return {NO_DEVICE}; }}\n" for s in sorted(symbols)))
        versions.write_text("".join(f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in nodes.items()))
        words = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library.name}", "-o", str(library)]
        words += [f"-Wl,--version-script={versions}"] if nodes else []
        subprocess.run([*words, str(source)], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
