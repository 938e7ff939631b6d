"""Build hook: compiles the .proto files beside it to Python, so that a checkout or a wheel just works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs protoc over pycontrol/wire/v1."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_protos(Path(self.root))


def compile_protos(root: Path) -> None:
    """Compiles every .proto under pycontrol/wire to modules beside it; raises RuntimeError if protoc fails."""
    from grpc_tools import protoc

    protos = sorted(str(p.relative_to(root)) for p in (root / "pycontrol/wire").rglob("*.proto"))
    out = [f"--{kind}={root}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"-I{root}", *out, *protos]) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(protos)}")
