"""The plugin's end of the bridge, as py4j's Java side speaks."""

from __future__ import annotations

import base64
import socket

from pycontrol.wire.v1 import bridge_pb2 as pb


class Plugin:
    """One connection of a peer."""

    def __init__(self, port: int, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.stream = self.socket.makefile("rwb")
        self.welcome = self.ask(f"A\n{token}\n")

    def ask(self, lines: str) -> str:
        """The server's answer; empty if it closes the connection."""
        try:
            self.stream.write(lines.encode())
            self.stream.flush()
            return self.stream.readline().decode().strip()
        except ConnectionError:
            return ""

    def exchange(self, request: pb.Request) -> pb.Response:
        answer = self.ask(f"c\nt\nexchange\nj{base64.b64encode(request.SerializeToString()).decode()}\ne\n")
        if not answer:
            raise ConnectionError("the control plane ended")
        assert answer.startswith("!yj"), answer
        return pb.Response.FromString(base64.b64decode(answer[3:]))

    def close(self) -> None:
        self.stream.close()
        self.socket.close()
