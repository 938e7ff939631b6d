"""Build hook: compiles the .proto files to Python and the auction's solver to a library, so that a checkout or a
wheel just works."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs protoc over pycontrol/wire/v1 and a C compiler over pycontrol/auction/solver.c."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_protos(Path(self.root))
        problem = compile_solver(Path(self.root))
        if problem:
            self.app.display_warning(f"auctions will be solved by HiGHS, ten times slower: {problem}")
        elif self.target_name == "wheel":  # a plain library: any Python 3, this platform
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


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


def compile_protos(root: Path) -> None:
    """Compiles every .proto under pycontrol/wire to modules beside it; raises RuntimeError if protoc fails."""
    from grpc_tools import protoc

    protos = sorted(str(p.relative_to(root)) for p in (root / "pycontrol/wire").rglob("*.proto"))
    out = [f"--{kind}={root}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"-I{root}", *out, *protos]) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(protos)}")
