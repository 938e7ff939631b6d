"""`isonomy serve` as a process: it starts, stops cleanly, and says in one line why it cannot start."""

import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
import yaml

from pycontrol.config import load_config
from pycontrol.daemon.control_plane import ControlPlane, settings_of
from pycontrol.rpc.tokens import Tokens
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1.agent_pb2_grpc import ArbiterStub
from tests.daemon.serving import COMMAND, LIMIT_S, serving


def _refused(config: Path, *options: str) -> str:
    done = subprocess.run(
        [*COMMAND, str(config), *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def _change(config: Path, **values: object) -> None:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | values))


def test_serves_agents_and_stops_cleanly(config: Path) -> None:
    with serving(config) as process:
        state = config.parent / "state"
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        for secret in ("tokens.key", "bridge.token", "journal.sqlite"):
            assert stat.S_IMODE((state / secret).stat().st_mode) == 0o600
        assert "Umask:\t0077\n" in Path(f"/proc/{process.pid}/status").read_text(), "nor is any later file for others"
        token = Tokens.of_file(state / "tokens.key").issue("application_1_1", "ann", 60, 4e9)
        address = yaml.safe_load(config.read_text())["agents"]["advertise"]
        with grpc.insecure_channel(address) as channel:
            call = ArbiterStub(channel).Session(
                iter([pb.AgentMessage(register=pb.Register(app_id="application_1_1"))]),
                metadata=[("isonomy-token", token)],
                timeout=LIMIT_S,
            )
            with pytest.raises(grpc.RpcError) as refused:  # no plugin has reported such an app
                list(call)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_second_control_plane_on_the_journal(config: Path) -> None:
    with serving(config):
        assert "another control plane holds this journal" in _refused(config)


@pytest.mark.parametrize("section", ["agents", "bridge"])
def test_port_in_use(config: Path, section: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _change(config, **{section: {"host": "127.0.0.1", "port": port}})
        assert f"{section}.port" in _refused(config)


@pytest.mark.parametrize("secret", ["tokens.key", "bridge.token"])
def test_secret_that_others_can_read(config: Path, secret: str) -> None:
    state = config.parent / "state"
    state.mkdir()
    (state / secret).write_text("0" * 64)
    (state / secret).chmod(0o644)
    line = _refused(config)
    assert secret in line
    assert "0600" in line or "chmod 600" in line


@pytest.mark.parametrize("switch", ["1", ""])
def test_a_switch_makes_the_control_plane_validate_its_state(
    config: Path, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISONOMY_VALIDATE", switch)
    assert settings_of(load_config(config)).validate == (switch == "1")


def test_wrong_configuration(config: Path) -> None:
    _change(config, lease_s=-1)
    assert _refused(config) == "error: isonomy.yaml: lease_s: must be > 0 (got -1)"
    _change(config, lease_s=600, f=1.5)
    assert "f: must be <= 1" in _refused(config)
    assert "cannot be read" in _refused(config.with_name("missing.yaml"))
    _change(config, f=0.8, topology="missing.yaml")
    assert "missing.yaml" in _refused(config)


def test_ends_with_an_error_when_the_bridge_is_gone(config: Path) -> None:
    """A supervisor can only restart a process that ends."""
    plane = ControlPlane(load_config(config), "isonomy")
    plane.start()
    try:
        bridge = next(t for t in threading.enumerate() if t.name == "isonomy-bridge")
        listening = bridge._args[0]  # type: ignore[attr-defined]
        listening.shutdown(socket.SHUT_RDWR)
        assert plane.run() == 1
    finally:
        plane.stop()


def test_serve_raises_its_limit_of_descriptors() -> None:
    code = (
        "import resource as r; from pycontrol.cli.serve import raise_descriptor_limit as go;"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); go();"
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_no_name_breaks_a_line_of_the_log(as_json: bool) -> None:
    code = (
        "import structlog; from pycontrol.cli.serve import set_up_logging as go;"
        f"go({as_json}, 'info');"
        "log = structlog.get_logger();"
        "log.warning('refused\\n', name='x\\n2026 [error] false\\x1b[31m\\u202e', n=3, why=['a\\nb'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.rstrip("\n").isprintable()
