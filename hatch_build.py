"""Build hook: compiles the .proto files to Python and the auction's solver to a library, so that a checkout or a
wheel just works. With ISONOMY_COMPILE=1 a wheel has the Arbiter compiled, too (docs/decisions/004)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "agentlogic/*.py",
    "arbiter/*.py",
    "arbiter/*/*.py",
    "model/*.py",
    *(f"simulation/{name}.py" for name in ("agents", "engine", "simulated_jobs", "yarn")),
)
INTERPRETED = {"__init__.py", "value.py", "topology.py"}
"""Modules with frozen dataclasses that keep what they reckoned."""


class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs protoc over pycontrol/wire/v1 and a C compiler over pycontrol/auction/solver.c."""

    def dependencies(self) -> list[str]:
        """What this build needs besides build-system.requires."""
        return ["mypy>=1.10", "setuptools"] if compiled(self.target_name) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_protos(Path(self.root))
        problem = compile_solver(Path(self.root))
        if compiled(self.target_name) and version != "editable":
            self.folder = tempfile.TemporaryDirectory()
            build_data["force_include"].update(compile_modules(Path(self.root), Path(self.folder.name)))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True  # this Python, this platform
            return
        if problem:
            self.app.display_warning(f"auctions will be solved by HiGHS, ten times slower: {problem}")
        elif self.target_name == "wheel":  # a plain library: any Python 3, this platform
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compiled(target: str) -> bool:
    """Whether the Arbiter is to be compiled."""
    return target == "wheel" and os.environ.get("ISONOMY_COMPILE") == "1"


def compile_modules(root: Path, out: Path) -> dict[str, str]:
    """Compiles the Arbiter and the values it works on with mypyc; returns each library with its place in the wheel."""
    found = (p for pattern in COMPILED for p in (root / "pycontrol").glob(pattern))
    modules = sorted(str(p.relative_to(root)) for p in found if p.name not in INTERPRETED)
    flags = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *modules]
    script = (
        "import sys; from setuptools import setup; from mypyc.build import mypycify;"
        "setup(name='isonomy', packages=[], ext_modules=mypycify(sys.argv[3:], target_dir=sys.argv[2]),"
        "script_args=['-q', 'build_ext', '--build-lib', sys.argv[1], '--build-temp', sys.argv[2]])"
    )
    command = [sys.executable, "-c", script, str(out / "lib"), str(out / "temp"), *flags]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the Arbiter was not compiled: {done.stdout.strip()} {done.stderr.strip()}")
    return {str(p): str(p.relative_to(out / "lib")) for p in (out / "lib").rglob("*.so")}


def compile_solver(root: Path) -> str:
    """Compiles the auction's solver to a library beside it; returns why not, empty if it did."""
    source = root / "pycontrol/auction/solver.c"
    library = source.with_name("_solver.so")
    library.unlink(missing_ok=True)
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        return "no C compiler was found (cc, gcc or clang)"
    flags = shlex.split("-std=c17 -O2 -Wall -Wextra -Werror -fPIC -shared")
    command = [compiler, *flags, str(source), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{compiler} failed: {done.stderr.strip()}" if done.returncode else ""


def any_runtime(text: str) -> str:
    """protoc's module without its check of protobuf's version, which would refuse TensorFlow 2.19's protobuf 5.

    What the module calls is in protobuf 5 to 7; that range is the dependency's bounds, and tests run on both ends.
    """
    text = text.replace("from google.protobuf import runtime_version as _runtime_version\n", "")
    return re.sub(r"^_runtime_version\.Validate\w+\(.*?^\)\n", "", text, flags=re.DOTALL | re.MULTILINE)


def compile_protos(root: Path) -> None:
    """Compiles every .proto under pycontrol/wire to modules beside it; raises RuntimeError if protoc fails."""
    from grpc_tools import protoc

    protos = sorted(str(p.relative_to(root)) for p in (root / "pycontrol/wire").rglob("*.proto"))
    out = [f"--{kind}={root}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"-I{root}", *out, *protos]) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(protos)}")
    for module in (root / "pycontrol/wire").rglob("*_pb2.py"):
        module.write_text(any_runtime(module.read_text(encoding="utf-8")), encoding="utf-8")
