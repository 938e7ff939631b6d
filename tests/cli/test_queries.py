"""The commands against a ResourceManager: output for people, output for scripts, and failures."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console, RenderableType

from pycontrol import words
from pycontrol.arbiter.ledger.facts import LeaseStarted
from pycontrol.cli import COMMANDS, client, main, screens
from pycontrol.cli.get import read_results
from pycontrol.cli.logs import newest_line
from pycontrol.policies import registry
from pycontrol.web.feed import WATCHERS_MAX
from tests.cli.conftest import ADMIN, AM, Rm, run
from tests.web.scene import EARLY, LATE, SHELL, Scene
from tests.worker.fake_webhdfs import FakeHdfs


def ok(server: Rm, *args: str, user: str = "u") -> str:
    result = run(server, *args, user=user)
    assert result.exit_code == 0, result.output
    assert all(line == line.rstrip() for line in result.stdout.splitlines())
    return result.stdout


def test_status(rm: Rm) -> None:
    text = ok(rm, "status")
    assert "of 12 GPUs leased" in text
    assert all(host in text for host in ("n1", "n2", "n3", "n4"))
    assert json.loads(ok(rm, "status", "-o", "json"))["gpus"]["total"] == 12
    assert rm.seen[0] == ("GET", "/ws/v1/cluster/isonomy/status", {"user.name": "u"})


@pytest.mark.parametrize(("launch_s", "said"), [(0.0, False), (25.0, False), (35.0, True)])
def test_status_says_that_launches_take_most_of_a_lease(rm: Rm, launch_s: float, said: bool) -> None:
    seen = json.loads(ok(rm, "status", "-o", "json")) | {"lease_s": 60.0, "launch_s": launch_s}
    console = Console(width=200)
    with console.capture() as text:
        console.print(screens.status(seen))
    assert ("a launch takes 35 s here" in text.get() and "leases of 60 s: lengthen lease_s" in text.get()) == said


def test_queue_has_a_line_for_each_app(rm: Rm) -> None:
    lines = ok(rm, "queue").splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:3] == ["#", "NAME", "APP"]
    for app_id in (EARLY, LATE, SHELL):
        assert sum(line.split()[2] == app_id for line in lines) == 1


def test_watch_has_a_line_for_each_app_in_80_columns(rm: Rm) -> None:
    console = Console(width=80)
    with console.capture() as text:
        console.print(screens.short_queue(json.loads(ok(rm, "queue", "-o", "json"))))
    assert len(text.get().splitlines()) == 4


@pytest.mark.parametrize(("view", "draw"), [("queue", screens.queue), ("rounds", screens.rounds)])
def test_a_narrow_screen_gets_whole_words_and_every_row(
    rm: Rm, view: str, draw: Callable[[Any], RenderableType]
) -> None:
    data = json.loads(ok(rm, view, "-o", "json"))
    console = Console(width=80)
    with console.capture() as text:
        console.print(draw(data))
    lines = text.get().splitlines()
    assert all(len(line) <= 80 for line in lines)
    wanted = (
        [a[k] for a in data["apps"] for k in ("app_id", "reason")]
        if view == "queue"
        else [r["round_id"] for r in data["rounds"]]
    )
    assert all(word in text.get() for word in wanted)


def test_explain(rm: Rm) -> None:
    text = ok(rm, "explain", "0002", "-n", "3")
    assert LATE in text
    assert "rho = T_sh / T_id = " in text
    assert "GPUs free or ending" in text
    assert len(json.loads(ok(rm, "explain", LATE, "-o", "json"))["rounds"]) <= 5


def test_rounds_are_listed_with_their_payments(rm: Rm) -> None:
    text = ok(rm, "rounds", "3")
    assert len(text.splitlines()) == 4
    assert " c 0." in ok(rm, "rounds", "100") or " c 1." in ok(rm, "rounds", "100")


def test_verbs(rm: Rm) -> None:
    assert "neither in isonomy.yaml" in ok(rm, "budget")
    assert "has gpu_hours_day 5" in ok(rm, "budget", "user", "u", "--day", "5", user=ADMIN)
    assert "user u" in ok(rm, "budget")
    assert "isonomy.yaml again" in ok(rm, "budget", "user", "u", "--reset", user=ADMIN)
    assert ok(rm, "pause", user=ADMIN) == "rounds stop and leases stand still\n"
    assert rm.scene.world.arbiter.holdings.paused
    assert "paused: " in ok(rm, "status")
    assert json.loads(ok(rm, "pause", "--end", "-o", "json", user=ADMIN))["ok"]
    assert "n2" in ok(rm, "drain", "n2", user=ADMIN)
    assert "n2" in ok(rm, "drain", "n2", "--end", user=ADMIN)
    assert EARLY in ok(rm, "kill", EARLY)


def test_a_boost_is_seen_until_it_ends(rm: Rm) -> None:
    assert "first in its virtual cluster for 1.5 h" in ok(rm, "boost", LATE, "--for", "1h30m", user=ADMIN)
    assert "first in its virtual cluster for 4 h" in ok(rm, "boost", LATE, "--for", "4h", user=ADMIN)
    assert "first in its virtual cluster for 4 h" in ok(rm, "boost", "user", "u", "--for", "4h", user=ADMIN)
    assert "boosted no more" in ok(rm, "boost", "user u", "--end", user=ADMIN)
    for args in (("status",), ("queue",), ("explain", LATE)):
        assert "boosted by root until" in ok(rm, *args)
    assert "boosted no more" in ok(rm, "boost", LATE, "--end", user=ADMIN)
    assert "boosted" not in ok(rm, "queue")
    assert "yarn.admin.acl" in run(rm, "boost", LATE, "--for", "4h").stderr
    for wrong in ((), ("--for", "4h", "--end"), ("--for", "4"), ("--for", "0h")):
        assert run(rm, "boost", LATE, *wrong, user=ADMIN).exit_code == 2


def test_refusals_are_one_line_and_exit_1(rm: Rm) -> None:
    for args in (("drain", "n2"), ("kill", "nobody"), ("explain", "nobody")):
        result = run(rm, *args)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    assert "yarn.admin.acl" in run(rm, "drain", "n2").stderr


def test_wrong_usage_exits_2(rm: Rm, tmp_path: Path) -> None:
    assert run(rm, "explain").exit_code == 2
    assert run(rm, "rounds", "0").exit_code == 2
    assert run(rm, "logs", EARLY, "--am", "--worker", "x").exit_code == 2
    result = run(None, "status")
    assert (result.exit_code, "HADOOP_CONF_DIR" in result.stderr) == (2, True)


def test_a_control_plane_that_does_not_answer_exits_3(rm: Rm) -> None:
    rm.down = True
    result = run(rm, "status")
    assert (result.exit_code, result.stderr) == (3, "error: no answer from the control plane at 127.0.0.1:26500\n")
    rm.plugin = False
    result = run(rm, "status")
    assert (result.exit_code, "isonomy config check DIR --hadoop" in result.stderr) == (3, True)
    result = run(None, "status", "--rm", "127.0.0.1:9")
    assert (result.exit_code, "cannot be reached" in result.stderr) == (3, True)


def test_the_resource_manager_of_yarn_site(rm: Rm, tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        f"<value>{rm.address}</value></property></configuration>"
    )
    result = CliRunner().invoke(main, ["status"], env={"HADOOP_CONF_DIR": str(tmp_path), "ISONOMY_RM": None})
    assert result.exit_code == 0, result.output


def test_of_a_pair_the_reachable_one_is_asked(rm: Rm, tmp_path: Path) -> None:
    result = run(None, "status", "--rm", f"127.0.0.1:9,{rm.address}")
    assert result.exit_code == 0, result.output
    site = {"ha.enabled": "true", "ha.rm-ids": "a,b", "webapp.address.a": "127.0.0.1:9", "webapp.address.b": rm.address}
    rows = (f"<property><name>yarn.resourcemanager.{k}</name><value>{v}</value></property>" for k, v in site.items())
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    result = CliRunner().invoke(main, ["status"], env={"HADOOP_CONF_DIR": str(tmp_path), "ISONOMY_RM": None})
    assert result.exit_code == 0, result.output


def test_logs_come_from_the_node_managers(rm: Rm) -> None:
    app_id = next(c.app_id for c in rm.scene.world.containers.values() if c.app_id != SHELL)
    workers = [c for c in rm.scene.world.containers.values() if c.app_id == app_id]
    text = ok(rm, "logs", app_id, "--tail", "1")
    assert AM not in text
    assert "first line" not in text
    assert "LogContents" not in text
    assert "End of" not in text
    assert all(f"last line of {c.container_id}" in text for c in workers)
    only = ok(rm, "logs", app_id, "--worker", workers[0].container_id)
    assert workers[0].container_id in only
    assert AM not in only
    assert ok(rm, "logs", app_id, "--am", "--tail", "1") == f"==> am {AM} App.stderr\nlast line of {AM}\n"
    assert all(x["files"] for x in json.loads(ok(rm, "logs", app_id, "-o", "json")))
    assert newest_line(client.Rm(f"http://{rm.address}"), app_id).startswith("last line of c")
    rm.native = False
    assert "a secure one needs Hadoop's native library, libhadoop.so" in ok(rm, "logs", app_id, "--am")
    rm.native = True
    assert run(rm, "logs", app_id, "--worker", "nobody").exit_code == 1


def test_logs_of_containers_that_have_ended(rm: Rm) -> None:
    world = rm.scene.world
    ended = next(x for x in world.journal if isinstance(x, LeaseStarted) and x.container_id not in world.containers)
    texts = [ok(rm, "logs", app_id) for app_id in (EARLY, LATE)]
    assert sum(f" {ended.container_id} App.stderr" in text for text in texts) == 1
    assert all(AM not in text for text in texts), "the master's only with --am"


def test_jobs_are_listed_with_what_became_of_them(rm: Rm) -> None:
    text = ok(rm, "jobs")
    assert text.split()[:10] == ["NAME", "APP", "USER", "STATE", "SUBMITTED", "TOOK", "GPU-H", "BEST", "KEPT", "IN"]
    assert EARLY in text
    assert LATE in text
    users = {a["user"] for a in json.loads(ok(rm, "jobs", "-o", "json"))["apps"]}
    mine = json.loads(ok(rm, "jobs", "--mine", "-o", "json", user=min(users)))["apps"]
    assert {a["user"] for a in mine} == {min(users)}
    assert ok(rm, "jobs", "--mine", user="nobody").strip() == "no app has run since then"
    assert run(rm, "jobs", "--since", "yesterday").exit_code == 2


def hdfs_in(folder: Path, rm: Rm) -> tuple[FakeHdfs, dict[str, str | None]]:
    """A WebHDFS over a folder there, and the environment in which the command finds it."""
    store = FakeHdfs(folder / "hdfs")
    (folder / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:9000</value></property><property>"
        f"<name>dfs.namenode.http-address</name><value>0.0.0.0:{store.port}</value></property></configuration>"
    )
    return store, {"HADOOP_CONF_DIR": str(folder), "ISONOMY_RM": rm.address, "HADOOP_USER_NAME": "u"}


def test_what_an_app_left_is_fetched(rm: Rm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, env = hdfs_in(tmp_path, rm)
    model, results = store.root / "models" / "ckpt-9-0f", store.root / "models" / f"results-{EARLY}"
    for folder, name in ((model, "model.pt"), (results, "trials.csv")):
        folder.mkdir(parents=True)
        (folder / name).write_text("job,f1\njob000,0.9\n")

    def get(folder: str, app: str = EARLY) -> Result:
        return CliRunner().invoke(main, ["get", app, folder], env=env)

    record = rm.scene.world.arbiter.durable.apps[EARLY]
    monkeypatch.setattr(record, "model_path", "hdfs://127.0.0.1:9000/models/ckpt-9-0f")
    target = tmp_path / "here"
    assert get(str(target)).output.split() == [str(target / model.name), str(target / results.name)]
    assert (target / model.name / "model.pt").read_text().startswith("job,f1")
    assert (target / results.name / "trials.csv").exists()
    again = get(str(target))
    assert (again.exit_code, "is there already" in again.output) == (1, True)
    monkeypatch.setattr("os.environ", env)
    assert read_results("u", {"app_id": EARLY, "model_path": record.model_path}, "trials.csv") == "job,f1\njob000,0.9\n"
    assert "nothing is kept of it: it has not ended" in get(str(tmp_path / "none"), LATE).output
    assert not (tmp_path / "none").exists()
    store.go()
    down = f"error: HDFS at http://127.0.0.1:{store.port} cannot be reached; is its NameNode up?\n"
    assert get(str(tmp_path / "other")).output == down


@pytest.mark.parametrize("name", ["../.ssh", "/proc/x", "..", ".ssh", "", "a\x1b[2J", "good"])
def test_the_owner_of_an_app_does_not_choose_where_its_files_come(
    rm: Rm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An app's name and its model's are any text: they must not lead out of the folder, nor to a hidden file."""
    store, env = hdfs_in(tmp_path, rm)
    record, model = rm.scene.world.arbiter.durable.apps[EARLY], store.root / "models" / ".bashrc"
    model.parent.mkdir(parents=True)
    model.write_text("evil")
    monkeypatch.setattr(record, "name", name)
    monkeypatch.setattr(record, "model_path", "hdfs://127.0.0.1:9000/models/.bashrc")
    (work := tmp_path / "home" / "work").mkdir(parents=True)
    monkeypatch.chdir(work)
    (work / "taken").touch()
    folder = "good" if name == "good" else EARLY
    assert CliRunner().invoke(main, ["get", EARLY], env=env).output == f"{folder}/{EARLY}\n"
    assert sorted(p.name for p in work.iterdir()) == sorted([folder, "taken"])
    refused = CliRunner().invoke(main, ["get", EARLY, "taken/in"], env=env)
    assert (refused.exit_code, refused.output) == (1, "error: taken/in: Not a directory\n")
    store.go()


OLD, NEW = "container_1_0001_01_000099", "container_1_0001_01_000100"


def dev_logs(rm: Rm, folder: Path, **files: str) -> Path:
    """A dev-cluster's folder with these files of standard output and error, by container and stream."""
    cluster = {"rm_web": f"http://{rm.address}", "roles": {"nodemanager-0": {"data": str(folder / "data")}}}
    (folder / "cluster.json").write_text(json.dumps(cluster))
    for where, text in files.items():
        container, _, stream = where.rpartition("_")
        path = folder / "data" / "log" / EARLY / container / stream
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_worker_that_failed_comes_first(rm: Rm, tmp_path: Path) -> None:
    failed = "ValueError: NaN\nisonomy worker: failed with 1\n"
    dev_logs(rm, tmp_path, **{f"{OLD}_stderr": failed, f"{NEW}_stderr": "fine\n", f"{AM}_stderr": failed})
    text = ok(rm, "logs", EARLY, "--cluster-dir", str(tmp_path))
    assert text.startswith(f"==> worker {OLD} stderr\nValueError: NaN\n")
    assert NEW in text
    assert AM not in text


def test_logs_are_followed_until_the_app_ends(rm: Rm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dev_logs(rm, tmp_path, **{f"{OLD}_stdout": "".join(f"line {n}\n" for n in range(20)) + "hal"})
    rm.states += ["RUNNING", "RUNNING", "FINISHED"]

    def later(_: float) -> None:
        if len(rm.states) == 2:
            dev_logs(rm, tmp_path, **{f"{OLD}_stdout": "".join(f"line {n}\n" for n in range(20)) + "half a line\n+"})
        else:
            dev_logs(rm, tmp_path, **{f"{NEW}_stdout": "another\n"})

    monkeypatch.setattr("pycontrol.cli.logs.time.sleep", later)
    text = ok(rm, "logs", EARLY, "-f", "--tail", "2", "--file", "stdout", "--cluster-dir", str(tmp_path))
    mine = [x for x in text.splitlines() if "App." not in x]
    assert mine == [
        f"==> worker {OLD} stdout",
        "line 18",
        "line 19",
        "half a line",
        "+",
        f"==> worker {NEW} stdout",
        "another",
    ]


def test_logs_of_a_dev_cluster_come_from_its_files(rm: Rm, tmp_path: Path) -> None:
    old = OLD
    dev_logs(rm, tmp_path, **{f"{OLD}_stdout": "an ended worker\n"})
    text = ok(rm, "logs", EARLY, "--worker", old, "--cluster-dir", str(tmp_path))
    assert text == f"==> worker {old} stdout\nan ended worker\n"


def test_logs_of_a_trial_are_found_where_it_went_on_in_the_process_of_another(rm: Rm, tmp_path: Path) -> None:
    dev_logs(
        rm,
        tmp_path,
        **{
            f"{OLD}_stderr": "first\nisonomy worker: goes on as job0041/1/0\n",
            f"{NEW}_stderr": "other\nisonomy worker: goes on as job004/2/0\nmine\n",
        },
    )
    text = ok(rm, "logs", EARLY, "--worker", "job004", "--cluster-dir", str(tmp_path))
    assert [x for x in text.splitlines() if x.startswith("==>")] == [f"==> worker {NEW} stderr"]


def test_watch_prints_events_as_they_come(rm: Rm) -> None:
    lines = ok(rm, "watch", "--for", "0.5", "-o", "json").splitlines()
    assert all(json.loads(line)["seq"] for line in lines)
    assert lines
    rm.down = True
    assert run(rm, "watch", "--for", "1").exit_code == 3


def test_a_watcher_that_the_control_plane_lets_not_wait_asks_now_and_then(rm: Rm) -> None:
    rm.scene.feed.watchers = WATCHERS_MAX
    ok(rm, "watch", "--for", "0.5")
    assert 1 <= len(rm.seen) <= 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    if name not in main.list_commands(click.Context(main)):
        pytest.skip("not installed")
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert name in CliRunner().invoke(main, ["--help"]).output


def test_the_list_has_a_whole_line_for_each_command() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in listed.partition("Commands:")[2]
    for name in main.list_commands(click.Context(main)):
        assert COMMANDS[name][1] in listed
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert not command.hidden
        assert command.get_short_help_str(80) == COMMANDS[name][1]


@pytest.mark.parametrize("variable", ["", "_ISONOMY_COMPLETE"])
def test_help_and_completion_load_no_command(variable: str) -> None:
    """A module of a command takes up to seconds to load, at each press of TAB."""
    asked = {"COMP_WORDS": "isonomy s", "COMP_CWORD": "1", variable: "zsh_complete"} if variable else {}
    code = (
        "import sys, pycontrol.cli as c\n"
        "try: c.main(prog_name='isonomy', args=['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('numpy', 'requests', 'pydantic')\n"
        "print('loaded:', [m for m in sys.modules if m.startswith('pycontrol.cli.') or m in heavy])"
    )
    env = {**os.environ, **asked}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert "status" in said
    assert said.splitlines()[-1] == "loaded: []"


HEAVY = ("grpc", "google.protobuf", "highspy", "jinja2", "numpy", "pulp", "pydantic", "scipy")


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["status", "--rm", "127.0.0.1:1"], HEAVY),
        (["queue", "--help"], HEAVY),
        (["explain", "--help"], HEAVY),
        (["simulate", "--help"], ("grpc", "scipy.optimize", "scipy.stats")),
        (["serve", "--help"], ("scipy.optimize", "scipy.stats")),
    ],
)
def test_a_command_loads_nothing_heavy_that_it_does_not_need(words: list[str], heavy: tuple[str, ...]) -> None:
    code = (
        "import sys, pycontrol.cli as c\n"
        f"try: c.main(prog_name='isonomy', args={words})\n"
        "except SystemExit as e: print('exit', e.code)\n"
        f"print('loaded:', [m for m in {heavy} if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-2:] == [f"exit {3 if '--rm' in words else 0}", "loaded: []"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "--polcy", "themis"], "No such option '--polcy'. Did you mean '--policy'?"),
        (["serve", "--config"], "Option '--config' requires an argument."),
        (["estimate", "--rm", "127.0.0.1:1", "--why=yes"], "Option '--why' does not take a value."),
        (["replay", "--forcd"], "No such option '--forcd'. Did you mean '--forced'?"),
        (
            ["workload", "show", "w1", "--seeds", "3"],
            "No such option '--seeds'. (Did you mean one of: '--seed', '--set'?)",
        ),
        (["journal", "chekc"], "no command chekc; did you mean check? (isonomy journal --help lists all)"),
        (["config", "--zzz"], "No such option '--zzz'."),
    ],
)
def test_a_typo_is_refused_before_its_command_is_loaded(words: list[str], said: str) -> None:
    """It took up to 1.4 s of CPU, most of it for libraries that only the command itself needs."""
    code = (
        "import sys, pycontrol.cli as c\n"
        f"try: c.main(prog_name='isonomy', args={words})\n"
        "except SystemExit as e: print('exit', e.code)\n"
        "heavy = {'numpy', 'requests', 'pydantic', 'rich'}\n"
        "print('loaded:', [m for m in sys.modules if m.startswith('pycontrol.cli.') or m in heavy])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (found.stderr.splitlines()[-1], found.stdout.splitlines()) == (
        f"Error: {said}",
        ["exit 2", "loaded: []"],
    )


def test_the_queue_shows_what_the_policy_orders_by() -> None:
    measure = {"name": "virtual finish time", "unit": "s"}
    assert words.standing(240.0, measure) == "in 4 min"
    assert words.standing(-721.0, measure) == "12 min ago"
    assert words.standing(1.234, {"name": "rho", "unit": ""}) == "1.23"
    assert words.standing(None, measure) == "-"


@pytest.mark.parametrize(("policy", "auctions"), [("themis", True), ("isonomy", False)])
@pytest.mark.parametrize("width", [80, 250])
def test_words_of_auctions_are_only_under_auctions(policy: str, auctions: bool, width: int) -> None:
    data = Scene(run_s=60, policy=registry.make(policy)).get("rounds")
    console = Console(width=width)
    with console.capture() as text:
        console.print(screens.rounds(data))
    said = re.findall(r"(?i)bid\w*|auction\w*|won|offered", text.get() + " ".join(r["text"] for r in data["rounds"]))
    assert bool(said) == auctions, said
    assert data["rounds"]


@pytest.mark.parametrize(("policy", "column"), [("themis", "RHO"), ("isonomy", "DUE"), ("yarn_cs", None)])
def test_rho_is_shown_where_the_policy_uses_it(policy: str, column: str | None) -> None:
    data = Scene(run_s=30, policy=registry.make(policy)).get("queue")
    console = Console(width=200)
    with console.capture() as text:
        console.print(screens.queue(data))
    head = text.get().splitlines()[0].split()
    assert [c for c in head if c in ("RHO", "DUE")] == ([column] if column else [])
