"""A server of Agents and workers, and its real gRPC clients."""

import queue
import threading
import time
from typing import Any

import grpc

from pycontrol.config import Tls
from pycontrol.model.auction import Contention
from pycontrol.model.events import AgentUp, SendRegistered
from pycontrol.model.topology import Machine, Topology
from pycontrol.rpc.admission import Owner
from pycontrol.rpc.agent_server import AgentServer
from pycontrol.rpc.tokens import Tokens
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1.agent_pb2_grpc import ArbiterStub

APP, OTHER = "application_1_0001", "application_1_0002"
TOKENS = Tokens(b"k" * 32)
TOPOLOGY = Topology.of([Machine("n1", "a", 4)])
CONTENTION = Contention(4, 1.0, 0.0, 0.0, 600.0)
WAIT_S = 30.0


class Peer:
    """One stream of a client: its sent and received messages."""

    def __init__(self, call, token: str) -> None:
        self._out: queue.Queue = queue.Queue()
        self._in: queue.Queue = queue.Queue()
        self._call = call(iter(self._out.get, None), metadata=[("isonomy-token", token)] if token else None)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._in.put(message)
            self._in.put(None)
        except grpc.RpcError as e:
            self._in.put(e)

    def send(self, message) -> None:
        self._out.put(message)

    def get(self):
        return self._in.get(timeout=WAIT_S)

    def kind(self) -> str:
        return self.get().WhichOneof("kind")

    def code(self) -> grpc.StatusCode:
        error = self.get()
        assert isinstance(error, grpc.RpcError), error
        return error.code()

    def close(self) -> None:
        self._out.put(None)
        assert self.get() is None

    def cut(self) -> None:
        self._call.cancel()
        self._out.put(None)
        self._thread.join(WAIT_S)


class Site:
    """A server, its events, and its clients."""

    def __init__(self, tls: Tls | None = None, first_message_s: float = 5.0, hdfs_tokens: Any = None) -> None:
        self.events: queue.Queue = queue.Queue()
        self.owners = {APP: Owner("ann", time.time() - 5), OTHER: Owner("ann", time.time() - 5)}
        """The apps that YARN knows."""
        self.server = AgentServer(
            *("127.0.0.1", 0, tls, TOKENS, self.events.put, lambda: TOPOLOGY, self.owners.get, lambda done: done()),
            first_message_s=first_message_s,
            owner_wait_s=1.0,
            hdfs_tokens=hdfs_tokens,
        )
        self.server.start()
        address = f"localhost:{self.server.port}"
        if tls:
            ca = grpc.ssl_channel_credentials(tls.ca.read_bytes())
            self.channel = grpc.secure_channel(address, ca)
        else:
            self.channel = grpc.insecure_channel(address)
        self.stub = ArbiterStub(self.channel)
        self.peers: list[Peer] = []

    def event(self):
        return self.events.get(timeout=WAIT_S)

    def session(self, token: str | None = None) -> Peer:
        token = TOKENS.issue(APP, "ann", 60, time.time()) if token is None else token
        self.peers.append(Peer(self.stub.Session, token))
        return self.peers[-1]

    def registered(self, attempt: str = "a1") -> Peer:
        """An Agent that the Arbiter has answered."""
        agent = self.session()
        agent.send(pb.AgentMessage(register=pb.Register(app_id=APP, attempt_id=attempt)))
        up = self.event()
        assert isinstance(up, AgentUp)
        assert (up.app_id, up.attempt_id, up.user) == (APP, attempt, "ann")
        self.server.send(SendRegistered(APP, CONTENTION, ()))
        assert agent.kind() == "registered"
        return agent

    def worker(self, worker_id: str = "w1", app_id: str = APP, port: int = 7) -> Peer:
        peer = Peer(self.stub.Worker, TOKENS.issue(app_id, "ann", 60, time.time()))
        self.peers.append(peer)
        peer.send(pb.WorkerMessage(worker_id=worker_id, ready=pb.WorkerReady(host="n1", port=port)))
        return peer

    def close(self) -> None:
        for peer in self.peers:
            peer.cut()
        self.channel.close()
        self.server.stop()
