"""One target under atheris: `python -m tests.fuzz.guided TARGET CORPUS... [libFuzzer's options]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["pycontrol", "submarine_patch", "yaml"]):
    from tests.fuzz.targets import TARGETS, quiet

if __name__ == "__main__":
    quiet()
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name].run)
    atheris.Fuzz()
