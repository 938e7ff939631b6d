"""Common mistakes in scripts and commands, and the one-line answer before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from submarine_patch.cli import check
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.options import parse_run

GOOD = "import argparse, isonomy\nparser = argparse.ArgumentParser()\nparser.add_argument('--learning-rate')\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(GOOD)
    (tmp_path / "space.yaml").write_text("parameters: {learning_rate: {type: float, min: 0.1, max: 1}}\n")
    return tmp_path


def notes(
    command: str = "python train.py", *more: str, file: str = "train.py", resources: str = "memory=1G"
) -> list[str]:
    words = ["--name", "x", "--worker_resources", f"{resources},vcores=1,gpu=1", "--worker_launch_cmd", command]
    lines = check(parse_run([*words, "--hours", "1", "--localization", f"./{file}:.", *more]))
    return [line for line in lines if line.startswith("note: ")]


def test_a_good_script_has_no_notes() -> None:
    assert notes() == []
    assert notes("python -u train.py --text 'two words' --name größe") == []
    assert notes("python $PWD/train.py --import isonomy") == notes("(python train.py --import isonomy)") == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python other.py", "other.py is not among the files of the workers; add --localization FILE:."),
        ("train.py", "train.py is a file of the job; write python train.py"),
        ("./train.py", "train.py does not begin with #!; write python train.py"),
        ("./go.sh", "go.sh is not among the files of the workers; add --localization FILE:."),
        ("prepare.py", "prepare.py is no program; write python prepare.py"),
        ("pyhton train.py", "pyhton: no such program here; did you mean python?"),
        ("nohup python train.py > log 2>&1 &", "with & at its end it ends at once, and the job with it; leave it out"),
        ("python train.py --text 'open", "No closing quotation; write quotes in pairs"),
    ],
)
def test_a_command_that_cannot_run_is_reported(command: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        notes(command)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "session"),
    [
        ("cd code && python run.py", True),
        ("cd ./code/sub; torchrun --standalone other.py", False),
        ("cd /nfs/me/project && python run.py", False),
        ("tar xf code.tgz && python project/run.py", False),
        ("git clone https://host/x && cd x && python run.py", False),
        ("conda run --cwd /nfs/project python run.py", False),
        ("ls *.py && python code/run.py", False),
    ],
)
def test_a_shell_may_change_to_its_script_or_make_it(here: Path, command: str, session: bool) -> None:
    (here / "code" / "sub").mkdir(parents=True)
    (here / "code" / "run.py").write_text(GOOD)
    (here / "code" / "sub" / "other.py").write_text("import argparse")
    apart = "note: a job's 2 GPUs may lie on several machines"
    found = notes(command, "--localization", "./code:.", "--conf", "isonomy.gpus_per_job=2")
    assert any(line.startswith(apart) for line in found) == session


def test_a_name_with_blanks_must_be_in_quotes(here: Path) -> None:
    (here / "my train.py").write_text(GOOD)
    with pytest.raises(UsageError, match=r"my train\.py has blanks; write 'my train\.py' in quotes"):
        notes("python my train.py", file="my train.py")
    assert notes("python 'my train.py'", file="my train.py") == []


def test_python_2_is_reported_with_its_line(here: Path) -> None:
    (here / "train.py").write_text("import os\nprint 'epoch', 1\n")
    with pytest.raises(
        UsageError, match=r"train\.py, line 2: no Python 3\.\d+: Missing parentheses in call to 'print'"
    ):
        notes()
    assert "starts again" in notes("python2 train.py")[0]


def test_a_binary_file_is_reported(here: Path) -> None:
    (here / "train.py").write_bytes(b"import os\0")
    with pytest.raises(UsageError, match=r"train\.py.*: no Python 3"):
        notes()


def test_windows_line_endings_are_reported(here: Path) -> None:
    (here / "go.sh").write_bytes(b"#!/bin/bash\r\npython train.py\r\n")
    with pytest.raises(UsageError, match=r"go\.sh has Windows' line ends"):
        notes("./go.sh", file="go.sh")
    (here / "go.sh").write_bytes(b"#!/bin/bash\npython train.py\n")
    (note,) = notes("./go.sh", file="go.sh")
    assert "deleted at its end" in note, "of its line ends nothing is said"


def test_missing_modules_are_noted(here: Path) -> None:
    (here / "helper.py").write_text("")
    lines = "import isonomy, helper, no_such_module_1, json\ntry:\n    import no_such_module_2\nexcept OSError:\n  1"
    (here / "train.py").write_text(lines)
    (note,) = notes()
    assert "train.py imports no_such_module_1, not installed" in note


def test_a_parameter_that_the_script_does_not_know_is_noted(here: Path) -> None:
    search = ("--app-scheduler", "asha", "--search-space", "space.yaml", "--max-iterations", "9")
    assert notes("python train.py", *search) == []
    (here / "space.yaml").write_text("parameters: {lr: {type: float, min: 0.1, max: 1}}\n")
    (note,) = notes("python train.py", *search)
    assert "the search space has lr, which train.py does not name" in note
    assert notes("python train.py --learning-rate %lr%", *search) == []


def test_a_placeholder_of_a_search_is_no_typo_and_no_parameter_is_left_out(here: Path) -> None:
    search = ("--app-scheduler", "asha", "--search-space", "space.yaml", "--max-iterations", "9")
    two = "parameters: {lr: {type: choice, values: [1]}, units: {type: choice, values: [2]}}\n"
    (here / "space.yaml").write_text(two)
    with pytest.raises(UsageError, match="the search space has no unit; did you mean %units%"):
        notes("python train.py --lr %lr% --units %unit%", *search)
    with pytest.raises(UsageError, match="%units% of the search space would not reach the script"):
        notes("python train.py --lr %lr%", *search)
    for whole in ("--lr %lr% --units %units%", "%hyperparameters%", "--lr %lr% %hyperparameters% --day %Y%m"):
        notes(f"python train.py {whole}", *search)


@pytest.mark.parametrize(("metric", "mode"), [("val_loss", "max"), ("eval/wer", "max"), ("val_accuracy", "min")])
def test_a_metric_with_the_wrong_mode_is_noted(metric: str, mode: str) -> None:
    (note,) = notes("python train.py", "--metric", metric, "--mode", mode)
    assert metric in note
    assert notes("python train.py", "--metric", metric, "--mode", "min" if mode == "max" else "max") == []


def test_a_forgotten_unit_is_reported() -> None:
    with pytest.raises(UsageError, match=r"memory=4: that is 4 MB; write memory=4G"):
        notes(resources="memory=4")


@pytest.mark.parametrize("name", ["größe", "my job", "a/b", "-x", "💥"])
def test_a_name_that_yarn_or_hdfs_would_refuse_is_reported(name: str) -> None:
    with pytest.raises(UsageError, match=r"letters, digits, '\.', '_' and '-' only"):
        check(parse_run(["--name", name, "--worker_resources", "memory=1G", "--worker_launch_cmd", "true"]))
