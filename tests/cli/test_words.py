"""Wrong inputs: one line that names the error, exit status 2, and no secrets in it."""

import base64
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli import FORMER, client, main
from pycontrol.model.cluster import YarnApp
from pycontrol.model.events import AppAdded, AppRemoved
from pycontrol.model.reasons import SENTENCES
from pycontrol.queries.pending_reasons import reason
from tests.cli.conftest import Rm, run
from tests.web.scene import EARLY, SHELL, Scene

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def wrong(*args: str, code: int = 2) -> str:
    result = CliRunner().invoke(main, list(args), env={"ISONOMY_RM": None, "HADOOP_CONF_DIR": None})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return str(result.output)


def test_the_resource_manager_may_be_named_before_the_command(rm: Rm) -> None:
    assert run(None, "--rm", rm.address, "status").exit_code == 0
    assert run(None, "status", "--rm", rm.address).exit_code == 0
    assert run(None, "cells", f"--rm={rm.address}", "status").exit_code == 0
    assert run(rm, "status").exit_code == 0


def test_an_unknown_command_suggests_the_nearest() -> None:
    assert "did you mean status?" in wrong("stats")
    assert "no command zzzzz (" in wrong("zzzzz")
    assert "no command stop; did you mean kill?" in wrong("stop", "my-app")
    assert "no command show; did you mean explain?" in wrong("show", "my-app")
    assert "no command submit; did you mean submarine job run?" in wrong("submit")


def test_addresses_are_checked_and_passwords_are_not_shown() -> None:
    assert "must be http://" in wrong("status", "--rm", "ftp://x")
    for address in ("http://user:pw@127.0.0.1:9", "user:pw@127.0.0.1:9"):
        text = wrong("status", "--rm", address, code=3)
        assert "pw" not in text
        assert "127.0.0.1:9" in text
    assert "pw" not in wrong("status", "--rm", "ftp://user:pw@x")


def test_a_name_that_no_machine_can_have_is_not_reached(rm: Rm) -> None:
    assert "has a name that does not resolve" in wrong("status", "--rm", "http://rm..example.com:8088", code=3)
    assert run(None, "status", "--rm", f"rm..example.com:8088,{rm.address}").exit_code == 0
    assert client.Rm(rm.address).page("http://nm..example.com:8042") == (0, "")


def test_a_user_id_without_a_name_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", nobody)
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    assert "set HADOOP_USER_NAME" in wrong("status", "--rm", "127.0.0.1:9")


def test_a_password_in_the_address_is_sent(rm: Rm) -> None:
    assert run(None, "status", "--rm", f"http://ann:pw@{rm.address}").exit_code == 0
    assert rm.authorization == f"Basic {base64.b64encode(b'ann:pw').decode()}"


def test_render_does_not_overwrite_files_that_differ(tmp_path: Path) -> None:
    out = tmp_path / "conf"
    assert wrong("config", "render", "--out", str(out), code=0)
    wrong("config", "render", "--out", str(out), code=0)
    (out / "yarn-site.xml").write_text("<configuration/>")
    text = wrong("config", "render", "--out", str(out), code=1)
    assert "yarn-site.xml" in text
    assert "--force" in text
    assert (out / "yarn-site.xml").read_text() == "<configuration/>"
    wrong("config", "render", "--out", str(out), "--force", code=0)
    assert (out / "yarn-site.xml").read_text() != "<configuration/>"


def test_simulate_names_the_option_and_says_what_it_does_not_know() -> None:
    base = ("simulate", "--workload", "w1,count=4", "--cluster", "2x4", "--seeds", "1")
    assert "checkpoint_s" in wrong(*base, "--set", "checkpoint_s=abc")
    assert "f" in wrong(*base, "--policy", "themis", "--set", "f=abc").partition("error")[2]
    text = wrong(*base, "--policy", "srtf,drf", code=0)
    assert "1 seed;" in text
    assert "one seed has no interval" in text
    assert "e+30" not in text


def test_unfinished_apps_are_reported_first(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    assert wrong("workload", "show", "w1,count=6", "--out", str(file), code=0)
    text = wrong("simulate", "--workload", str(file), "--cluster", "1x1", "--seeds", "1", code=0)
    assert "of the apps of a run did not finish" in text.splitlines()[0]


def test_records_say_what_to_give_in_production(tmp_path: Path) -> None:
    for command in ("audit", "report"):
        text = wrong(command, "--cluster-dir", str(tmp_path))
        assert "--config isonomy.yaml" in text
        assert text.count("\n") == 1


def test_an_experiments_report_is_a_folder(tmp_path: Path) -> None:
    assert "is a folder" in wrong("experiment", "themis-table1", "--report", str(tmp_path / "b.md"))
    assert not (tmp_path / "b.md").exists()


@pytest.mark.parametrize("former", FORMER)
def test_former_words_still_work_and_say_what_to_write(former: str) -> None:
    done = CliRunner().invoke(main, [*former.split(), "x", "--help"])
    assert done.exit_code == 0
    assert done.stderr == f"{former} is now: isonomy {FORMER[former]}\n"
    assert done.stdout.startswith(f"Usage: main {FORMER[former].partition(' --')[0]} ")


def test_the_operators_guide_has_every_reason() -> None:
    text = OPERATIONS.read_text(encoding="utf-8")
    assert [code for code in SENTENCES if f"`{code}`" not in text] == []


@pytest.fixture
def scene() -> Scene:
    return Scene(run_s=60)


def test_an_app_without_gpus_and_demand_is_not_running(scene: Scene) -> None:
    a = scene.world.arbiter
    assert reason(a, SHELL, scene.world.now).code == "Running"
    new = "application_1_0042"
    scene.submit(AppAdded(YarnApp(new, "ann", "root.q", "new", "SUBMARINE", scene.world.now)))
    assert "is starting" in reason(a, new, scene.world.now).sentence
    scene.submit(AppRemoved(new, "KILLED"))
    agent = a.agents[EARLY]
    for lease in a.durable.leases.of(EARLY):
        a.durable.leases.drop(lease)
    for reservation in a.durable.reservations.of(EARLY):
        a.durable.reservations.drop(reservation)
    a.durable.held.pop(EARLY, None)
    for worker in a.workers.of(EARLY):
        a.workers.drop(worker)
    agent.demand = type(agent.demand)(0, 0)
    assert reason(a, EARLY, scene.world.now).code == "Idle"
    json.dumps(scene.get("queue"))
