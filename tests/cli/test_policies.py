"""`isonomy policies`, and the policy that `isonomy serve` runs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pycontrol.cli import main
from pycontrol.config import Config, parse
from pycontrol.daemon.control_plane import policy_of
from pycontrol.policies import registry
from pycontrol.policies.gandiva import Gandiva
from pycontrol.policies.themis import Themis


def test_all_policies_are_listed_with_their_options() -> None:
    listed = json.loads(CliRunner().invoke(main, ["policies", "-o", "json"]).output)["policies"]
    assert [p["name"] for p in listed] == list(registry.names())
    assert next(p for p in listed if p["name"] == "gandiva")["options"] == {
        "restart_s": 40.0,
    }
    text = CliRunner().invoke(main, ["policies"]).output
    assert all(p["name"] in text and p["summary"] in text for p in listed)


@pytest.mark.parametrize(
    ("yaml", "name", "policy"),
    [
        ("", "themis", Themis(budget_s=2.0)),
        ("deadlines: {solve_s: 5.0}", "themis", Themis(budget_s=5.0)),
        ("{policy: themis, deadlines: {solve_s: 5}, policy_options: {budget_s: 1}}", "themis", Themis(budget_s=1.0)),
        ("{policy: gandiva, policy_options: {restart_s: 9}}", "gandiva", Gandiva(restart_s=9)),
        ("{policy: themis, policy_options: {budget_s: 1.0}}", "gandiva", Gandiva()),
    ],
)
def test_serve_takes_the_options_of_the_policy_that_the_file_names(yaml: str, name: str, policy: object) -> None:
    assert policy_of(parse(yaml, Config, "isonomy.yaml"), name) == policy
