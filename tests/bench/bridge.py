"""What one exchange over the bridge costs: from a JVM with the plugin's own client to Python and back."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path

from pycontrol.bridge.server import BridgeServer
from pycontrol.wire.v1 import bridge_pb2 as pb

REPO = Path(__file__).resolve().parents[2]
MODULE, HADOOP = REPO / "yarn-plugin/rm", REPO / "build/submarine/lib/*"
JAR = MODULE / "target/isonomy-yarn-rm.jar"
BENCH = MODULE / "src/test/java/isonomy/yarn/BridgeBench.java"
SIZES = (100, 100_000)
DEADLINE_S = 120.0


def echo(request: pb.Request) -> pb.Response:
    """Answers with the request."""
    return pb.Response(id=request.id, query_reply=pb.QueryReply(status=200, body=request.query.body))


def measure(jar: Path = JAR) -> dict[str, dict[str, float]]:
    """Milliseconds of a round trip by payload size, and of a bare TCP echo of the same payload."""
    java, javac = shutil.which("java"), shutil.which("javac")
    if java is None or javac is None or not jar.exists():
        raise FileNotFoundError(f"the bridge cannot be measured without a JDK and {jar}: run `make java` first")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_echo_bytes, args=(listening,), daemon=True).start()
        subprocess.run([javac, "-cp", f"{jar}:{HADOOP}", "-d", folder, str(BENCH)], check=True)
        token_file, requests = Path(folder) / "bridge.token", [Path(folder) / str(size) for size in SIZES]
        for file, size in zip(requests, SIZES, strict=True):
            file.write_bytes(pb.Request(id=1, query=pb.Query(body=bytes(size))).SerializeToString())
        server = BridgeServer("127.0.0.1", 0, token_file, echo)
        server.start()
        try:
            command = [java, "-cp", f"{folder}:{jar}:{HADOOP}", "isonomy.yarn.BridgeBench", "127.0.0.1"]
            command += [str(server.port), str(token_file), str(listening.getsockname()[1]), *map(str, requests)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        finally:
            server.stop()
    if done.returncode:
        raise RuntimeError(f"the bridge's benchmark failed: {done.stderr.strip() or done.stdout.strip()}")
    times_ms: dict[tuple[str, int], list[float]] = {}
    for line in done.stdout.splitlines():
        kind, size, *times_ns = line.split()
        times_ms[kind, int(size)] = sorted(int(t) / 1e6 for t in times_ns)
    return {
        f"{size} B": {
            "median_ms": statistics.median(own),
            "p95_ms": own[int(0.95 * len(own))],
            "n": len(own),
            "bare_tcp_median_ms": statistics.median(times_ms["tcp", size]),
        }
        for (kind, size), own in times_ms.items()
        if kind == "bridge"
    }


def _echo_bytes(listening: socket.socket) -> None:
    """Sends back whatever one peer sends."""
    peer, _ = listening.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        while part := peer.recv(1 << 16):
            peer.sendall(part)
