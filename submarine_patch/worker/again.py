"""Runs a script with a session again in the same process, so that the next trial there need not import its framework.

`python -m submarine_patch.worker.again LINE SCRIPT ARGUMENTS` (or `-m MODULE`; LINE: the descriptor of a socket to the
supervisor) is `python SCRIPT ARGUMENTS`. Once the
script's session has finished it tells the supervisor, which may answer with the arguments and the environment of the
next launch. Modules beside the script are imported anew, all others stay.
"""

from __future__ import annotations

import gc
import json
import os
import re
import runpy
import shlex
import socket
import sys
from collections.abc import Sequence
from typing import Any

_SHELL = re.compile(r"[$`\\;&|<>(){}*?~!#\n\[\]]")
_OURS = ("submarine_patch", "pycontrol", "isonomy")


def script_of(command: str) -> list[str]:
    """The script, or -m and the module, with the arguments, of a command line that is nothing but `python` with these;
    else []."""
    words = [] if _SHELL.search(command) else shlex.split(command)
    plain = len(words) > 1 and words[0] in ("python", "python3") and (words[1] == "-m" or words[1][0] != "-")
    return words[1:] if plain and len(words) > 1 + (words[1] == "-m") else []


def main(descriptor: int, script: list[str]) -> int:
    """Run the script until no other launch follows; returns the last exit code."""
    with socket.socket(fileno=descriptor) as line, line.makefile("rb") as answers:
        path, folder = list(sys.path), os.getcwd()
        while True:
            code = _ran(script)
            session: Any = sys.modules.get("submarine_patch.worker.session")
            if code or session is None or not session.finished:
                return code
            _forget(folder)
            session.finished = False
            session.stop_request.disarm()
            sys.stdout.flush()
            line.sendall(b"\n")
            told = answers.readline()
            if not told:
                return 0
            script, env = json.loads(told)
            os.environ.clear()
            os.environ.update(env)
            sys.path[:] = path
            os.chdir(folder)


def _ran(script: Sequence[str]) -> int:
    """The exit code of the script, as `python` would have it; an exception ends this process as it would that."""
    module = script[0] == "-m"
    sys.argv = list(script[module:])
    try:
        if module:
            runpy.run_module(script[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(script[0]))
            runpy.run_path(script[0], run_name="__main__")
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr, flush=True)
        return 1
    return 0


def _forget(folder: str) -> None:
    """Drop what the script left: modules of its own folders, Keras' names and graphs, garbage."""
    own = (f"{os.path.realpath(folder)}{os.sep}", f"{folder}{os.sep}", f"{sys.path[0] or folder}{os.sep}")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(own) and "site-packages" not in file and name.partition(".")[0] not in _OURS:
            del sys.modules[name]
    for keras in filter(None, map(sys.modules.get, ("keras", "tf_keras"))):
        keras.backend.clear_session()
    gc.collect()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
