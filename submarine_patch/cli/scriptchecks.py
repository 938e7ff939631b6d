"""Checks the launch command and its script before anything is submitted: mistakes, and notes for the user.

Only local files that go to the workers are checked. What cannot run anywhere is a mistake; what may differ on another
machine (a module that is not installed here) is a note.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.options import RunArguments, add_conf

KNOWS_US = re.compile(rb"\b(isonomy|submarine_patch)\b")
PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*|(?:\S*/)?torchrun")
PROGRAMS = ("python", "python3", "torchrun", "bash", "sh", "mpirun", "accelerate", "deepspeed")
"""The usual first words of a launch command."""
PLACEHOLDER = re.compile(r"%([\w.-]+)%")
GIVEN = ("hyperparameters", "input_path", "checkpoint_path", "saved_model_path")
"""Placeholders that are no parameters."""
MODULES_NAMED = 3
Local = Mapping[str, Path | None]
"""{name in the containers: local path, or None if it is not local}."""


def check_script(parsed: RunArguments, command: str, local: Local) -> list[str]:
    """Check a launch command; returns notes for the user, raises UsageError if it could not run."""
    try:
        words = shlex.split(command)
    except ValueError as e:
        raise _wrong(f"{e}; write quotes in pairs") from e
    if re.search(r"(?:^|[^&\\])&\s*$", command):
        raise _wrong("with & at its end it ends at once, and the job with it; leave it out")
    space = _space(parsed)
    _placeholders(command, space)
    if not PYTHON.fullmatch(words[0]):
        _program(words[0], local)
        shell = words[1] if words[0] in ("bash", "sh") and len(words) > 1 else ""
        if shell.endswith(".sh") and not shell.startswith("/") and Path(shell).parts[0] not in local:
            raise _wrong(f"{shell} is not among the files of the workers; add {_localize(shell)}")
        return _saves(parsed, command.encode())
    script = _script(words, local)
    if script is None:
        return _saves(parsed, command.encode())
    try:
        source = script.read_bytes()
    except OSError:
        raise _wrong(f"{script} cannot be read") from None
    notes = _saves(parsed, source, script.name)
    if "python2" in words[0]:
        return notes
    tree = _parsed(script, source)
    return [*notes, *_modules(script, tree, local), *_unused(space, script, source, command)]


def _wrong(why: str) -> UsageError:
    return UsageError(f"--worker_launch_cmd: {why}")


def _program(word: str, local: Local) -> None:
    """Check a program other than Python: it may be misspelt, or a file without an interpreter."""
    name = word.removeprefix("./")
    here = local.get(name)
    if here is not None and here.is_file():
        if not word.startswith("./"):
            run = f"python {word}" if word.endswith(".py") else f"./{word}"
            raise _wrong(f"{word} is a file of the job; write {run}")
        with here.open("rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!") and first.endswith(b"\r\n"):
            raise _wrong(f"{name} has Windows' line ends; convert it, for example with dos2unix")
        if name.endswith(".py") and not first.startswith(b"#!"):
            raise _wrong(f"{name} does not begin with #!; write python {name}")
        return
    if word.startswith("./") and name.split("/")[0] not in local:
        raise _wrong(f"{name} is not among the files of the workers; add {_localize(name)}")
    if word.endswith(".py") and "/" not in word:
        raise _wrong(f"{word} is no program; write python {word}, and add {_localize(word)}")
    near = difflib.get_close_matches(word, PROGRAMS, 1, 0.7)
    if near and word.isalnum() and word not in PROGRAMS and shutil.which(word) is None:
        raise _wrong(f"{word}: no such program here; did you mean {near[0]}?")


def _localize(name: str) -> str:
    return f"--localization ./{name}:." if Path(name).is_file() else "--localization FILE:."


def _script(words: list[str], local: Local) -> Path | None:
    """The script that the command's Python runs, if it is local; raises UsageError if no file has this name."""
    script = next((w for w in words[1:] if w.endswith(".py") and not w.startswith("-")), None)
    if script is not None and words[0] == "cd":
        script = str(Path(words[1].rstrip(";"), script))
    if script is None or "-m" in words or "-c" in words or script.startswith(("/", "~", "$")) or "%" in script:
        return None
    parts = Path(script).parts
    if parts[0] not in local:
        spaced = next((name for name in local if " " in name and name in " ".join(words)), None)
        if spaced is not None:
            raise _wrong(f"{spaced} has blanks; write '{spaced}' in quotes within the command")
        raise _wrong(f"{script} is not among the files of the workers; add {_localize(script)}")
    source = local[parts[0]]
    return source.joinpath(*parts[1:]) if source is not None else None


def has_session(command: str, local: Local) -> bool:
    """Whether the command or its script names our modules; where no script can be found and read, it has none."""
    if KNOWS_US.search(command.encode()):
        return True
    try:
        script = _script(shlex.split(command), local)
        return script is not None and KNOWS_US.search(script.read_bytes()) is not None
    except (OSError, ValueError, UsageError):  # a shell may make the script, or change to its folder
        return False


def _saves(parsed: RunArguments, text: bytes, script: str = "") -> list[str]:
    """A note if nothing that the program writes is kept: it would lose its results, and, if it is a script that was
    read, its work at each revocation."""
    if parsed.conf.get("keep_folder") or parsed.conf.get("unsaved") == "false" or KNOWS_US.search(text):
        return []
    if script and "unsaved" not in parsed.conf:
        add_conf(parsed, "unsaved", "true")
    again = (
        f"{script} uses no isonomy session, and no --keep-folder is given: when its GPUs go to others it starts"
        " again, and the files that it writes"
        if script
        else "files that the command writes beside it"
    )
    return [
        f"note: {again} are deleted at its end; --keep-folder FOLDER keeps those below FOLDER, and isonomy get"
        " fetches them (docs/submit.md)"
    ]


def _parsed(script: Path, source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as e:
        line = f", line {e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        what = e.msg if isinstance(e, SyntaxError) else str(e)
        raise _wrong(f"{script.name}{line}: no Python {version}: {what}") from e


def _modules(script: Path, tree: ast.Module, local: Local) -> list[str]:
    """Modules that the script imports at once and that are neither here nor among its files."""
    own = {Path(name).stem for name in local} | {p.stem for p in script.parent.iterdir()}
    names = dict.fromkeys(name.split(".")[0] for name in _imported(tree))
    absent = [name for name in names if name not in own and not _installed(name)]
    if not absent:
        return []
    more = f" and {len(absent) - MODULES_NAMED} more" if len(absent) > MODULES_NAMED else ""
    return [
        f"note: {script.name} imports {', '.join(absent[:MODULES_NAMED])}{more}, not installed for the Python here:"
        " see that the NodeManagers' has it (--python)"
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def _installed(name: str) -> bool:
    try:
        return name in sys.builtin_module_names or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _space(parsed: RunArguments) -> list[str]:
    """The names of the searched parameters; none where the file is wrong, as `check_group` says so."""
    from submarine_patch.cli.checks import load_search_space

    try:
        return list(load_search_space(Path(parsed.conf["search_space"])))
    except (KeyError, UsageError):
        return []


def _placeholders(command: str, space: Sequence[str]) -> None:
    """Refuse a misspelt placeholder, and a command that gives its script only some of the searched parameters."""
    named = dict.fromkeys(PLACEHOLDER.findall(command))
    for name in named:
        near = difflib.get_close_matches(name, space, 1)
        if near and name not in (*space, *GIVEN):
            raise _wrong(f"the search space has no {name}; did you mean %{near[0]}%?")
    absent = [f"%{name}%" for name in space if name not in named]
    if absent and len(absent) < len(space) and "hyperparameters" not in named:
        raise _wrong(
            f"{' and '.join(absent)} of the search space would not reach the script; name all parameters, or"
            " write %hyperparameters% for --NAME VALUE of each"
        )


def _unused(space: Sequence[str], script: Path, source: bytes, command: str) -> list[str]:
    """Parameters of the search space that the script does not know would end each of its jobs."""
    text = source.decode(errors="replace").replace("_", "-")
    if "parse-known-args" in text:
        return []
    for name in space:
        if f"%{name}%" not in command and not re.search(rf"\b{re.escape(name.replace('_', '-'))}\b", text):
            return [f"note: the search space has {name}, which {script.name} does not name; it gets --{name} VALUE"]
    return []
