"""The wrapper `submarine`: the options that it passes on, and refusals before anything is submitted."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pycontrol.hadoopconf.names import OUR_RUNTIME
from submarine_patch.cli import check, main
from submarine_patch.cli.checks import check_group, check_spec, load_search_space
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.options import parse_run

JOB = ["--name", "x", "--worker_resources", "memory=1G,vcores=1", "--worker_launch_cmd", "true"]
SITE = (
    "<configuration><property><name>yarn.resourcemanager.webapp.address</name><value>{}</value></property>"
    "</configuration>"
)
SPACE = """\
parameters:
  learning_rate: {type: float, min: 1e-3, max: 0.1, log: true}
  batch: {type: choice, values: [32, 64]}
  layers: {type: int, min: 1, max: 3}
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    return file


def test_stock_options_pass_through_and_friendly_ones_become_conf() -> None:
    parsed = parse_run(
        [
            "-name",
            "digits",
            "--worker_launch_cmd",
            "python t.py --eta 5",
            "--eta=4",
            "--gpus-per-job",
            "2",
            "--conf",
            "isonomy.seed=7",
            "--conf",
            "a.b=c",
            "--env",
            "A=b",
            "--env=C=d",
            "--wait_job_finish",
            "-o",
            "json",
        ]
    )
    assert parsed.stock == [
        "--name",
        "digits",
        "--worker_launch_cmd",
        "python t.py --eta 5",
        "--conf",
        "isonomy.eta=4",
        "--conf",
        "isonomy.gpus_per_job=2",
        "--conf",
        "isonomy.seed=7",
        "--conf",
        "a.b=c",
        "--env",
        "A=b",
        "--env",
        "C=d",
        "--wait_job_finish",
    ]
    assert parsed.conf == {"eta": "4", "gpus_per_job": "2", "seed": "7"}
    assert parsed.json


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nam", "x"], "--nam: unknown option; the nearest known one is --name"),
        (["--conf", "isonomy.max_iteration=3"], "unknown key; the nearest known one is isonomy.max_iterations"),
        (["--eta", "3", "--conf", "isonomy.eta=4"], "isonomy.eta: given twice"),
        (["--eta"], "--eta: its value is absent"),
        (["--conf", "isonomy.eta"], "write key=value"),
        (["--name", "my", "job"], "job: not an option"),
        (["-o", "xml"], "must be json or text"),
    ],
)
def test_mistakes_in_options_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        parse_run(arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: {nam: x}", "spec.nam: unknown key; did you mean name?"),
        ("roles: {worker: {gpu: 1}}", "roles.worker.gpu: unknown key; known are resources"),
        ("roles: {worker: 3}", "roles.worker must be a mapping"),
        ("- a", "a spec must be a mapping with spec, configs"),
        ("{{", "not YAML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_spec_names_file_and_key(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "job.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as caught:
        check_spec(file)
    assert str(caught.value).startswith(f"-f {file}: ")
    assert message in str(caught.value)


def test_options_for_cells_are_checked_and_passed_on() -> None:
    words = ["--priority", "3", "--within", "switch", "--pinned", "corner", "--lazy-preemption", "true"]
    parsed = parse_run([*JOB, *words])
    check_group(parsed.conf)
    assert parsed.stock[-2:] == ["--conf", "isonomy.lazy_preemption=true"]
    assert parsed.conf["priority"] == "3"


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"priority": "-1"}, "isonomy.priority=-1: must be a whole number, at least 0"),
        ({"within": "room"}, "isonomy.within=room: must be one of machine, socket, switch, rack"),
        ({"opportunistic": "yes"}, "isonomy.opportunistic=yes: must be one of true, false"),
        ({"lazy_preemption": "1"}, "isonomy.lazy_preemption=1: must be one of true, false"),
        ({"opportunistic": "true", "pinned": "a"}, "isonomy.pinned: an opportunistic job owns no cells"),
        ({"opportunistic": "true", "lazy_preemption": "true"}, "isonomy.lazy_preemption: an opportunistic job"),
        ({"pinned": "a\nb"}, "must be the pinned_id of a cell"),
    ],
)
def test_cells_that_no_job_can_have_are_refused(conf: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_group(conf)


def test_a_good_spec_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "spec: {name: a, jobType: TENSORFLOW}\nconfigs: {input_path: /d, envs: {A: b}}\n"
        "roles: {worker: {replicas: 1, launch_cmd: x}}"
    )
    check_spec(file)


def test_a_good_group_is_accepted(space: Path) -> None:
    check_group({})
    check_group(
        {
            "app_scheduler": "hyperband",
            "search_space": str(space),
            "max_iterations": "27",
            "slowdown": "1, 1.2,1.5",
            "iteration_s": "0.5",
            "gpus_per_job": "2",
        }
    )
    assert list(load_search_space(space)) == ["learning_rate", "batch", "layers"]


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"app_scheduler": "hyperbandd"}, "must be one of single, hyperband, successive_halving"),
        ({"app_scheduler": "hyperband"}, "isonomy.search_space is absent"),
        ({"eta": "3"}, "isonomy.eta: needs --app-scheduler hyperband, successive_halving or asha"),
        ({"jobs": "3"}, "isonomy.jobs: needs --app-scheduler hyperband, .* or optuna"),
        ({"app_scheduler": "median", "target": "0.9"}, "isonomy.target: needs --app-scheduler curve"),
        ({"app_scheduler": "optuna", "eta": "3"}, "isonomy.eta: needs"),
        ({"app_scheduler": "optuna", "sampler": "cmaes"}, "isonomy.sampler=cmaes: must be one of tpe, random, gp"),
        ({"app_scheduler": "curve", "target": "high"}, "isonomy.target=high: must be a number"),
        ({"speedups": "K80"}, "isonomy.speedups=K80: must be GPU types with speeds"),
        ({"gpu_bound": "1.5"}, "isonomy.gpu_bound=1.5: must be a number from 0 to 1"),
        ({"notify": "ftp://x"}, "isonomy.notify=ftp://x: must be an address"),
        ({"gpus_per_job": "0"}, "must be a whole number, at least 1"),
        ({"gpus_per_job": "8:1"}, "at least 1, or like 1:8"),
        ({"gpus_per_job": "1:8", "within": "switch"}, "jobs within one switch have as many GPUs throughout"),
        ({"seed": "1.5"}, "must be a whole number, at least 0"),
        ({"iteration_s": "nan"}, "must be a number above 0"),
        ({"slowdown": "1.2,1.1,1.3"}, "three numbers from 1.0"),
        ({"metric": "a b"}, "isonomy.metric=a b: must be the name of a reported value"),
        ({"mode": "least"}, "isonomy.mode=least: must be one of min, max"),
        ({"keep_folder": "../x"}, "isonomy.keep_folder=../x: must be a folder below"),
        (
            {"app_scheduler": "hyperband", "search_space": "x", "max_iterations": "2", "min_iterations": "3"},
            "isonomy.min_iterations=3: above isonomy.max_iterations=2",
        ),
        (
            {"app_scheduler": "hyperband", "search_space": "/none.yaml", "max_iterations": "2"},
            "/none.yaml: cannot be read",
        ),
    ],
)
def test_mistakes_in_groups_are_named(conf: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_group(conf)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"parameters: {{lr: {'9' * 5000}}}", "not YAML: Exceeds the limit"),
        ("[1, 2", "not YAML"),
        ("parameters: {lr: {type: int, min: 0, max: 1, min: 1}}", "not YAML: min is there twice; join them"),
        ("lr: {type: float, min: 0, max: 1}", "needs 'parameters:'"),
        ("parameters: {}", "at least one parameter"),
        ("parameters: {lr: {type: real}}", "type is 'real'; it must be float, int or choice"),
        ("parameters: {lr: {type: float, min: 0}}", "'max' must be a number"),
        ("parameters: {lr: {type: float, min: 2, max: 1}}", "min 2 is above max 1"),
        ("parameters: {lr: {type: int, min: 0.5, max: 1}}", "'min' must be a whole number"),
        ("parameters: {lr: {type: float, min: 0, max: 1, log: true}}", "min must be above 0"),
        ("parameters: {lr: {type: choice, values: []}}", "at least one value"),
        ("parameters: {lr: {type: choice, value: [1]}}", "unknown key 'value'"),
    ],
)
def test_a_bad_search_space_names_file_and_parameter(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        load_search_space(file)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a cluster whose web address it does not know; each submission fails."""
    return fake_installation(tmp_path, monkeypatch, "", status=1)


SUBMARINE_SITE = f"""<configuration>
<property><name>submarine.runtime.class</name><value>{OUR_RUNTIME}</value></property></configuration>"""


def fake_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rm: str, status: int) -> Path:
    """A class path and a fake java that records its arguments and answers like a submission."""
    home, conf, jdk = tmp_path / "home", tmp_path / "conf", tmp_path / "jdk"
    for folder in (home / "lib", conf, jdk / "bin"):
        folder.mkdir(parents=True)
    (home / "lib" / "isonomy-submarine-runtime.jar").touch()
    for name in ("core-site.xml", "yarn-site.xml"):
        (conf / name).touch()
    (conf / "submarine-site.xml").write_text(SUBMARINE_SITE)
    if rm:
        (conf / "yarn-site.xml").write_text(SITE.format(rm))
    java = jdk / "bin" / "java"
    java.write_text(f"""#!/bin/bash
printf '%s\\n' "$@" > {tmp_path}/arguments
printf '                  _  \\n  ___ _   _| |__\\n ?\\n'
echo "Submitted application_1_0002 (x, single) to queue root.prod"
exit {status}
""")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SUBMARINE_HOME", str(home))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    monkeypatch.setenv("JAVA_HOME", str(jdk))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output.out, output.err


def test_the_stock_command_line_is_run(installation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "job", "run", *JOB, "--seed", "3", "-o", "json")
    assert status == 1
    told = json.loads(out)
    assert told == {"application_id": "application_1_0002", "exit_status": 1, "start_s": None, "end_s": None}
    assert "Submitted application_1_0002" in err
    given = (installation / "arguments").read_text().splitlines()
    assert given[-11:] == ["isonomy.submarine.Launcher", "job", "run", *JOB, "--conf", "isonomy.seed=3"]
    assert f"-Disonomy.conf={installation / 'conf'}" in given


def test_the_first_submission_leaves_its_classes_to_the_next_ones(installation: Path) -> None:
    def submitted() -> str:
        with pytest.raises(SystemExit):
            main(["job", "run", *JOB])
        given = (installation / "arguments").read_text().splitlines()
        return next(word for word in given if word.endswith(".jsa") or "AtExit" in word)

    archiving = re.compile(r"-XX:ArchiveClassesAtExit=(.*)")
    java = installation / "jdk" / "bin" / "java"
    java.write_text(
        java.read_text().replace("echo", 'for w in "$@"; do [[ $w = *AtExit* ]] && touch "${w#*=}"; done\necho')
    )
    first, second = submitted(), submitted()
    assert archiving.match(first)
    [archive] = (installation / "cache" / "isonomy").iterdir()
    assert second == f"-XX:SharedArchiveFile={archive}"
    jar = installation / "home" / "lib" / "isonomy-submarine-runtime.jar"
    os.utime(jar, (archive.stat().st_mtime + 1,) * 2)
    assert archiving.match(submitted()), "after an upgrade"
    assert list(archive.parent.iterdir()) == [archive]


def test_a_mistake_is_one_line(installation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "job", "run", *JOB, "--gpus-per-job", "many")
    assert (status, out) == (2, "")
    assert err.startswith("submarine: isonomy.gpus_per_job=many: must be a whole number, at least 1, or like 1:8")
    assert not (installation / "arguments").exists()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HADOOP_CONF_DIR", "", "HADOOP_CONF_DIR is not set"),
        ("HADOOP_CONF_DIR", "/nowhere", "no core-site.xml there"),
        ("SUBMARINE_HOME", "/nowhere", "set SUBMARINE_HOME"),
        ("JAVA_HOME", "/nowhere", "set it to a JDK 17"),
    ],
)
@pytest.mark.usefixtures("installation")
def test_missing_parts_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    status, _, err = run(capsys, "job", "run", *JOB)
    assert status == 2
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<configuration/>", f"submarine-site.xml: submarine.runtime.class: must be {OUR_RUNTIME} (got nothing)"),
        (SUBMARINE_SITE.replace("isonomy.", "org."), "(got org.submarine.IsonomyRuntimeFactory)"),
        ("", "submarine-site.xml: is not XML"),
    ],
)
def test_a_site_without_the_runtime_is_named(
    installation: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (installation / "conf" / "submarine-site.xml").write_text(text)
    status, _, err = run(capsys, "job", "run", *JOB)
    assert (status, message in err) == (2, True), err


def test_a_resourcemanager_that_is_down_is_one_line(installation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, not listening: nobody else answers there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (installation / "conf" / "yarn-site.xml").write_text(SITE.format(address))
        status, out, err = run(capsys, "job", "run", *JOB, "--keep-folder", "out")
    assert (status, out) == (1, "")
    assert err.startswith(f"submarine: the ResourceManager at http://{address} cannot be reached (Connection refused)")
    assert not (installation / "arguments").exists()


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "job", "run", "--help")
    assert status == 0
    for option in ("--app-scheduler", "--search-space", "--worker_launch_cmd", "-o json"):
        assert option in out


SWEEP = ("--search-space", "space.yaml", "--max-iterations", "81", "--gpus-per-job", "2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "note: nothing says how long it trains, so its declared work is one lease of its GPUs"),
        (("--hours", "2", "--gpus-per-job", "4"), "declared work: 8.0 GPU-h, 2 h on 4 GPUs"),
        (("--epochs", "30"), "note: nothing says how long its 30 epochs take, so its declared work is one lease"),
        (("--epochs", "30", "--hours", "2"), "declared work: 2.0 GPU-h, 2 h on 1 GPU for 30 epochs"),
        (("--max-iterations", "900", "--iteration-s", "2"), "declared work: 1,800 GPU-s, 900 iterations of 2 GPU-s"),
        (("--max-iterations", "900"), "note: nothing says how long its 900 iterations take, so its declared work is"),
        (("--app-scheduler", "hyperband", *SWEEP), "143 trials, rungs at 1, 3, 9, 27, 81 iterations (as the script's"),
        (
            ("--app-scheduler", "asha", "--jobs", "9", "--min-iterations", "9", *SWEEP),
            "9 trials, rungs at 9, 27, 81 iterations (as the script's log counts them: batches, or epochs if it names"
            " none), 189 in all at most",
        ),
        (
            ("--app-scheduler", "asha", "--jobs", "9", "--min-iterations", "9", "--hours", "0.5", *SWEEP),
            "declared work: 2.3 GPU-h, 0.5 h on 2 GPUs for a whole job at most",
        ),
        (("--app-scheduler", "optuna", "--jobs", "6", *SWEEP), "6 trials iterations"),
    ],
)
def test_a_submission_says_what_it_will_try_and_what_it_declares(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text("parameters: {lr: {type: float, min: 0.1, max: 1}}")
    words = ("--name", "d", "--worker_resources", "memory=1G,vcores=1,gpu=1", "--worker_launch_cmd", "./train")
    parsed = parse_run([*words, "--localization", "hdfs:///train:./train", *options])
    lines = check(parsed)
    assert any(line.startswith(said) for line in lines), lines


@pytest.mark.parametrize("words", [["--nmae", "x"], [*JOB, "--worker_resources", "memory=1G,vcores=1,gpu=1"], JOB])
def test_a_mistake_is_refused_before_anything_heavy_is_loaded(words: list[str]) -> None:
    """It took 1.2 s of CPU, most of it for libraries that only a search or a question to the cluster needs."""
    heavy = "numpy scipy grpc pydantic requests rich optuna hdfs google.protobuf"
    code = (
        "import sys\nfrom submarine_patch.cli import main\ntry:\n    main(['job', 'run', *sys.argv[1:]])\n"
        f"except SystemExit:\n    print(set(sys.modules) & set({heavy!r}.split()))"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("HADOOP_CONF_DIR", "SUBMARINE_HOME")}
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=env, check=True)
    assert ran.stdout == "set()\n"
    assert ran.stderr.startswith("submarine: ")


def test_an_option_that_counts_once_is_not_given_twice() -> None:
    with pytest.raises(UsageError, match=r"^--queue: given twice$"):
        parse_run(["--queue", "a", "--queue", "b"])
    assert parse_run(["--env", "A=1", "--env", "B=2"]).values["env"] == ["A=1", "B=2"]


def good(*more: str) -> list[str]:
    given = dict(zip(JOB[::2], JOB[1::2], strict=True)) | dict(zip(more[::2], more[1::2], strict=True))
    return [word for pair in given.items() for word in pair]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--worker_resources", "memory=2G,vcores=2,gpus=1"], "--worker_resources gpus: unknown; did you mean gpu?"),
        (["--worker_resources", "vcores=2"], "--worker_resources: memory is absent; write for example memory=2G"),
        (["--worker_resources", "memory=2G,gpu=one"], "--worker_resources gpu=one: write for example"),
        (["--worker_resources", ""], "--worker_resources is absent: for example --worker_resources memory=2G,vcores=2"),
        (["--worker_launch_cmd", " "], "--worker_launch_cmd is absent: for example"),
        (
            ["--worker_launch_cmd", "python train.py"],
            "--worker_launch_cmd: train.py is not among the files of the workers",
        ),
        (["--worker_launch_cmd", "python 'x"], "--worker_launch_cmd: No closing quotation"),
        (
            ["--worker_launch_cmd", "cat %input_path%"],
            "--input_path is absent, and the launch command has %input_path%",
        ),
        (["--num_workers", "two"], "--num_workers two: must be a whole number, at least 1"),
        (["--num_workers", "0"], "--num_workers 0: must be a whole number, at least 1"),
        (["--framework", "jax"], "--framework jax: unknown; known are tensorflow, pytorch, mxnet, keras, command"),
        (["--framework", "mxnet", "--num_workers", "2"], "--num_workers 2: MXNet's scheduler and servers are not"),
        (["--framework", "mxnet", "--num_ps", "1"], "--num_ps: MXNet's scheduler and servers are not supported"),
        (["--framework", "mxnet", "--num_schedulers", "1"], "--num_schedulers: MXNet's scheduler and servers are not"),
        (["--framework", "pytroch"], "--framework pytroch: unknown; did you mean pytorch?"),
        (["--framework", "keras", "--num_workers", "2"], "Keras 3 cannot fit over several workers on TensorFlow"),
        (["--framework", "keras", "--gpus-per-job", "1:8", "--within", "rack"], "write --within machine"),
        (["--framework", "keras", "--num_workers", "2", "--env", "KERAS_BACKEND=torch"], "--env KERAS_BACKEND=jax"),
        (["--name", "my job"], "--name my job: letters, digits, '.', '_' and '-' only"),
        (["--localization", "/nowhere/t.py:."], "--localization /nowhere/t.py: no such file or folder here"),
        (["--localization", "/tmp:/abs"], "--localization /tmp:/abs: an absolute target needs a Docker mount"),
        (["--localization", "/tmp"], "--localization /tmp: write /tmp:., or /tmp:./NAME for another name"),
        (["--localization", "hdfs://nn:1/x"], "--localization hdfs://nn:1/x: write hdfs://nn:1/x:."),
        (["--localization", "/tmp:x"], "--localization /tmp:x: write /tmp:./x"),
        (["--localization", ".:."], "--localization .:.: the folder needs a name there; write for example .:./code"),
        (["--localization", "/tmp:./a$b"], "YARN cannot make a file with '$' in its name; rename it"),
        (["--env", "RANK=3"], "--env RANK: this variable is set by Isonomy, leave it out"),
        (["--docker_image", "image:1"], "--docker_image: not supported; workers run in the NodeManagers' own Python"),
        (["--num_ps", "1"], "--num_ps 1: needs at least 2 workers (--num_workers), as Submarine requires"),
        (["--num_ps", "-1"], "--num_ps -1: must be a whole number"),
        (["--num_ps", "1", "--num_workers", "2"], "--ps_resources is absent: what each server needs"),
        (
            ["--num_ps", "1", "--num_workers", "2", "--ps_resources", "memory=1G,gpu=1"],
            "--ps_resources gpu: parameter servers run without GPUs",
        ),
        (
            ["--num_ps", "1", "--num_workers", "2", "--ps_resources", "memory=1"],
            "--ps_resources memory=1: that is 1 MB",
        ),
        (["--num_ps", "1", "--framework", "pytorch"], "--num_ps: not with --framework pytorch"),
        (["--ps_docker_image", "image:1"], "--ps_docker_image: not supported"),
        (["--quicklink", "a=b"], "--quicklink a=b: write LABEL=http://HOST:PORT"),
        (["--quicklink", "UI=http://worker-0:80/x"], "write LABEL=http://HOST:PORT"),
        (["--tensorboard_resources", "memory=4G"], "TensorBoard runs beside the application master; leave it out"),
    ],
)
def test_mistakes_are_one_line_before_any_connection(
    installation: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    status, out, err = run(capsys, "job", "run", *good(*more))
    assert (status, out) == (2, "")
    assert err.startswith("submarine: --")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (installation / "arguments").exists()


def test_two_files_of_one_name_are_refused_but_not_one_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "util.py").touch()

    def files(*pairs: str) -> list[str]:
        return [word for pair in pairs for word in ("--localization", pair)]

    words = [*good("--worker_launch_cmd", "python util.py"), *files("a/util.py:.", "./a/util.py:./util.py")]
    check(parse_run([*words, *files("b/util.py:./other.py")]))
    with pytest.raises(UsageError, match=re.escape("b/util.py: a/util.py has this name, too; write b/util.py:./NAME")):
        check(parse_run([*words, *files("b/util.py:.")]))
    with pytest.raises(UsageError, match=r"hdfs:///b/util[.]py: a/util[.]py has this name"):
        check(parse_run([*words, *files("hdfs:///b/util.py:.")]))


@pytest.mark.parametrize(
    ("name", "stock"),
    [
        ("pytorch", "pytorch"),
        ("mxnet", "mxnet"),
        ("keras", "tensorflow"),
        ("command", "tensorflow"),
        ("TensorFlow", "tensorflow"),
    ],
)
def test_frameworks_keep_the_stock_meaning(
    installation: Path, capsys: pytest.CaptureFixture[str], name: str, stock: str
) -> None:
    run(capsys, "job", "run", *good("--framework", name))
    given = (installation / "arguments").read_text().splitlines()
    assert given[given.index("--framework") + 1] == stock
    assert f"isonomy.framework={name.lower()}" in given


ANYWHERE = ("--within", "cluster")


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        (["--framework", "keras", "--gpus-per-job", "4"], True),
        (["--framework", "keras", "--gpus-per-job", "1:4"], True),
        (["--framework", "keras", "--gpus-per-job", "1"], False),
        (["--framework", "keras", "--gpus-per-job", "4", "--env", "TF_USE_LEGACY_KERAS=1", *ANYWHERE], False),
        (["--framework", "keras", "--gpus-per-job", "4", "--env", "KERAS_BACKEND=jax", *ANYWHERE], False),
        (["--framework", "pytorch", "--gpus-per-job", "4", *ANYWHERE], False),
    ],
)
def test_jobs_that_keras_fits_stay_on_one_machine(
    installation: Path, capsys: pytest.CaptureFixture[str], more: list[str], kept: bool
) -> None:
    _, _, err = run(capsys, "job", "run", *good(*more))
    assert ("isonomy.within=machine" in (installation / "arguments").read_text().splitlines()) == kept
    assert ("each job is kept on one" in err) == kept


@pytest.mark.parametrize(
    ("script", "more", "kept"),
    [
        ("print(1)", ["--gpus-per-job", "4"], True),
        ("print(1)", ["--gpus-per-job", "4", "--within", "rack"], False),
        ("print(1)", ["--gpus-per-job", "4", *ANYWHERE], False),
        ("print(1)", ["--gpus-per-job", "1"], False),
        ("print(1)", ["--gpus-per-job", "4", "--num_workers", "2"], False),
        ("import isonomy", ["--gpus-per-job", "4"], False),
    ],
)
def test_a_script_that_knows_of_no_other_machine_stays_on_one(
    installation: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, script: str, more: list[str], kept: bool
) -> None:
    (tmp_path / "own.py").write_text(script)
    local = ["--localization", f"{tmp_path / 'own.py'}:.", "--worker_launch_cmd", "python own.py"]
    _, _, err = run(capsys, "job", "run", *good(*more, *local))
    assert ("isonomy.within=machine" in (installation / "arguments").read_text().splitlines()) == kept
    assert ("so each job stays on one machine" in err) == kept
    spreads = not kept and "4" in more and "--num_workers" not in more
    assert ("WORLD_SIZE is 1 to 4" in err) == spreads


def test_the_banner_is_not_passed_on_and_workers_need_no_input(
    installation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "job", "run", *good("--num_workers", "2"))
    assert out == "Submitted application_1_0002 (x, single) to queue root.prod\n"
    assert "--input_path" in (installation / "arguments").read_text().splitlines()


def test_a_script_without_checkpoints_gets_a_note(installation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, ours = installation / "plain.py", installation / "ours.py"
    plain.write_text("import torch\n")
    ours.write_text("import isonomy\n")
    for script, more, told in ((plain, [], True), (plain, ["--keep-folder", "ckpt"], False), (ours, [], False)):
        _, _, err = run(
            capsys,
            "job",
            "run",
            *good("--worker_launch_cmd", f"python {script.name}", "--localization", f"{script}:."),
            *more,
        )
        assert ("starts again" in err) == told, err


@pytest.mark.parametrize(
    ("command", "more", "told"),
    [
        ("true", (), True),
        ("python -m train", (), True),
        ("python -m isonomy_train", (), True),
        ("python -m isonomy.train", (), False),
        ("true", ("--keep-folder", "out"), False),
        ("true", ("--unsaved", "false"), False),
    ],
)
def test_a_command_that_is_not_read_is_told_what_is_deleted(command: str, more: tuple[str, ...], told: bool) -> None:
    lines = check(parse_run([*good("--worker_launch_cmd", command), *more]))
    assert any("deleted at its end; --keep-folder FOLDER keeps those" in line for line in lines) == told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["job", "show"], "job show: the name of the job is absent"),
        (["job", "stop", "x"], "job stop: unknown command; did you mean kill?"),
        (["job", "rm", "x"], "job rm: unknown command; did you mean kill?"),
        (["submit"], "submit: unknown command; `submarine job run OPTIONS` submits"),
        (["job", "run", *JOB, "--gpus", "2"], "--gpus: unknown option; GPUs of a worker are in --worker_resources"),
        (
            ["job", "run", *JOB, "--saved_model_path", "hdfs://no.such.host.invalid:9000/x"],
            "--saved_model_path hdfs://no.such.host.invalid:9000/x: no host no.such.host.invalid is known here",
        ),
        (
            ["job", "run", *JOB, "--checkpoint_path", "s3a://bucket/x"],
            "--checkpoint_path s3a://bucket/x: results are written to the cluster's HDFS; give a path there",
        ),
        (
            ["job", "run", "--name", "x", "--worker_resources", "memory=4GB,vcores=1", "--worker_launch_cmd", "true"],
            "--worker_resources memory=4GB: the units are M and G; write memory=4G",
        ),
        (
            ["job", "run", "--name", "x", "--worker_resources", "memory=1G", "--worker_launch_cmd", "bash run.sh"],
            "--worker_launch_cmd: run.sh is not among the files of the workers; add --localization FILE:.",
        ),
        (["job", "lst"], "job lst: unknown command; did you mean list?"),
        (["job", "kill"], "job kill: the name of the job is absent: submarine job kill NAME"),
    ],
)
def test_other_verbs_name_the_mistake(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert says in err


def test_list_kill_and_logs_are_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("pycontrol.cli.main", lambda words, prog_name: asked.append(words))
    for words in (["list"], ["kill", "--name", "x"], ["logs", "x", "--tail", "5"]):
        with pytest.raises(SystemExit) as ended:
            main(["job", *words])
        assert ended.value.code == 0
    assert asked == [["queue"], ["kill", "x"], ["logs", "x", "--tail", "5"]]
