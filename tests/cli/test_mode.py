"""`isonomy mode` asks the plugin, which answers whether or not there is a control plane."""

import json
import time

from tests.cli.conftest import ADMIN, Rm, run


def test_the_mode_is_shown_and_switched_while_the_control_plane_is_stopped(rm: Rm) -> None:
    rm.down = True
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1.5))
    shown = run(rm, "mode")
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == ["on for root.a", f"switched by ann, {at}", "kept in /rm/isonomy-mode.json"]
    off = json.loads(run(rm, "mode", "off", "-o", "json", user=ADMIN).output)
    assert (off["mode"], off["queues"], off["by"], off["at_s"]) == ("off", ["root.a"], ADMIN, 2.5)
    assert run(rm, "mode", "shadow", "--queues", "root.a,root.b", user=ADMIN).output.startswith(
        "shadow for root.a, root.b"
    )
    assert rm.seen[-1] == (
        "POST",
        "/ws/v1/cluster/isonomy/mode",
        {"mode": "shadow", "queues": "root.a,root.b", "user.name": ADMIN},
    )


def test_what_is_wrong_is_said(rm: Rm) -> None:
    rm.mode |= {
        "mode": "unreadable",
        "queues": [],
        "by": "",
        "at_s": None,
        "problem": "no such file",
        "obsolete": ["isonomy.scheduler.mode"],
    }
    assert run(rm, "mode").output.splitlines() == [
        "unreadable",
        "nothing new with GPUs is placed, running containers stay: no such file",
        "kept in /rm/isonomy-mode.json",
        "obsolete in yarn-site.xml, remove: isonomy.scheduler.mode",
    ]
    assert json.loads(run(rm, "mode", "-o", "json").output)["at_s"] is None
    rm.mode |= {"mode": "off", "problem": ""}
    assert "never switched" in run(rm, "mode").output
    assert (run(rm, "mode", "on").exit_code, run(rm, "mode", "on").output.strip()) == (
        1,
        "error: mode: u is not in the admin ACL",
    )
    assert run(rm, "mode", "dark").exit_code == 2
    assert run(rm, "mode", "--queues", "root.a").exit_code == 2
