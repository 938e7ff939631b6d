"""An isonomy.yaml with free ports."""

import contextlib
import socket
from pathlib import Path

import pytest
import yaml


def free_ports(n: int) -> list[int]:
    """Ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    bridge, agents = free_ports(2)
    file = tmp_path / "isonomy.yaml"
    data = {
        "state_dir": "state",
        "bridge": {"port": bridge},
        "agents": {"host": "127.0.0.1", "port": agents, "advertise": f"127.0.0.1:{agents}"},
    }
    file.write_text(yaml.safe_dump(data))
    return file
