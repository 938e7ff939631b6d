"""The policy named in isonomy.yaml: every entry point checks it, and errors name the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli import main
from pycontrol.config import Config, ConfigError, parse
from pycontrol.hadoopconf.check import checked

WRONG = [
    (
        "{policy: gandiva, policy_options: {restrat_s: 1}}",
        "isonomy.yaml: policy_options: gandiva has no option restrat_s; did you mean restart_s? Known are restart_s",
    ),
    (
        "{policy: oef, policy_options: {mode: both}}",
        "isonomy.yaml: policy_options: oef: mode: Input should be 'cooperative' or 'noncooperative' (got both)",
    ),
    (
        "{policy: themis, policy_options: {engine: higs}}",
        "isonomy.yaml: policy_options: themis: engine: "
        "Input should be '', 'compiled', 'highs' or 'reference' (got higs)",
    ),
    ("{policy: themis, policy_options: {ties: random}}", "isonomy.yaml: policy_options: themis has no option ties"),
    (
        "policy_options: {queue_weights: {root.a: 2}}",
        "isonomy.yaml: policy_options: isonomy has no option queue_weights any more; "
        "write accounts.others.queues.QUEUE.weight",
    ),
    (
        "policy_options: {user_weights: {ann: 2}}",
        "isonomy.yaml: policy_options: isonomy has no option user_weights any more; "
        "write accounts.others.users.USER.weight",
    ),
    ("policy: themsi", "isonomy.yaml: policy: there is no policy themsi; did you mean themis? Known are themis, "),
]


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_each_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(parse(text, Config, "isonomy.yaml"), "isonomy.yaml")
    (said,) = caught.value.lines
    assert said.startswith(line)


def test_a_known_policy_passes_unchanged() -> None:
    config = parse("{policy: gandiva, policy_options: {restart_s: 9}}", Config, "x")
    assert checked(config, "x") is config


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_serve_refuses_an_unknown_policy(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "isonomy.yaml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["serve", "--config", str(file)])
    assert (done.exit_code, line in done.output) == (1, True), done.output
    assert [p.name for p in tmp_path.iterdir()] == ["isonomy.yaml"]


def test_config_check_names_the_unknown_policy(tmp_path: Path) -> None:
    (tmp_path / "isonomy.yaml").write_text("policy: themsi")
    done = CliRunner().invoke(main, ["config", "check", str(tmp_path / "isonomy.yaml")])
    assert done.exit_code != 0
    assert "there is no policy themsi" in done.output


def test_render_refuses_an_unknown_policy(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["config", "render", "--out", str(out), "--set", "isonomy.policy=themsi"])
    assert (done.exit_code, out.exists()) == (1, False)
    assert "there is no policy themsi" in done.output
