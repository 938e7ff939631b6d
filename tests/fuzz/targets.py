"""The fuzz targets: each takes bytes and raises only if there is a fault.

Input that cannot be read must be refused by the error that its reader documents, and nothing else.
"""

# ruff: noqa: E501
from __future__ import annotations

import dataclasses
import json
import logging
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.views.settings import Settings
from pycontrol.bridge import bridge_messages as bridge_translate
from pycontrol.bridge.endpoint import BridgeEndpoint
from pycontrol.bridge.server import BridgeError, bridge_token
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.config import Config, ConfigError, TopologySpec, load_topology, mapping, parse
from pycontrol.daemon import standby_store as kept
from pycontrol.hadoopconf import render as rendering
from pycontrol.hadoopconf.sitefile import read_site, rm_web_url
from pycontrol.lab.workloads import CATALOGUE
from pycontrol.lab.workloads.imports import CSV_FORMATS
from pycontrol.lab.workloads.trace_table import BadTrace
from pycontrol.model import events as ev
from pycontrol.model import tags
from pycontrol.model.auction import Contention, HeldGrant
from pycontrol.model.bounds import BOUNDS, LAST_S, LONGEST_S, clip
from pycontrol.model.cluster import Ask, Node, YarnApp
from pycontrol.model.topology import Gpu, Machine, Topology
from pycontrol.policies import registry
from pycontrol.queries import cells_view
from pycontrol.queries.lookup import Refusal, whole_number
from pycontrol.rpc import agent_messages, message_checks, relayed
from pycontrol.rpc.message_checks import Malformed
from pycontrol.rpc.tokens import TokenError, Tokens, read_or_make_key
from pycontrol.secretfile import SecretFileError
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from pycontrol.wire.v1 import bridge_pb2
from submarine_patch.agent.agent_core import AgentCore
from submarine_patch.agent.messages import LinkLost
from submarine_patch.agent.schedulers.search_space import sample
from submarine_patch.agent.spec import AppSpec
from submarine_patch.agent.speeds import Speeds
from submarine_patch.cli.checks import UsageError, load_search_space
from submarine_patch.worker import logparse
from tests.agent.world import SPEC, hyperband
from tests.cells.files import supply_of
from tests.fuzz.mutate import FLOATS, TEXTS, message

APP = "application_1_0001"
HOSTS = {"n1": None, "n2": None}
TOPOLOGY = Topology.of([Machine("n1", "a", 4), Machine("n2", "b", 4)])
CORPUS = Path(__file__).with_name("corpus")
STORY_MAX = 60
NOW_S = 1000.0


@dataclass(frozen=True)
class Target:
    """`make`: an odd input that is well formed in its outer shape, where mutated bytes would seldom be so."""

    run: Callable[[bytes], None]
    make: Callable[[random.Random], bytes] | None = None

    def corpus(self, name: str) -> list[bytes]:
        """The stored inputs, including known faults."""
        folder = CORPUS / name
        return [f.read_bytes() for f in sorted(folder.iterdir())] if folder.is_dir() else [b""]


def _parsed(kind: type[Any], data: bytes) -> Any | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def _file(data: bytes, name: str = "input") -> Path:
    path = _FOLDER / name
    with suppress(FileNotFoundError):
        path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)
    return path


_FOLDER = Path(tempfile.mkdtemp(prefix="isonomy-fuzz-"))

# ---- messages one by one


def agent_message(data: bytes) -> None:
    """What an Agent sends is a value, or Malformed."""
    said = _parsed(pb.AgentMessage, data)
    if said is None:
        return
    try:
        match said.WhichOneof("kind"):
            case "register":
                event: Any = agent_messages.agent_up(APP, "ann", said.register)
            case "to_worker":
                event = relayed.worker_command(said.to_worker)
            case _:
                event = agent_messages.event_of(APP, said, HOSTS)
    except Malformed as e:
        problem = str(e)
    else:
        problem = ""
        repr(event)
    assert problem.isprintable()
    assert len(problem) < 600


def worker_message(data: bytes) -> None:
    """What a worker sends is relayed within bounds, or Malformed; an Agent's mind takes it."""
    said = _parsed(pb.WorkerMessage, data)
    if said is None:
        return
    try:
        kept_message = relayed.worker_message(said)
    except Malformed:
        return
    assert kept_message.ByteSize() < 8 * message_checks.TEXT_MAX_CHARS


def bridge_message(data: bytes) -> None:
    """What the plugin sends is answered, whatever it is; only what can be read reaches the Arbiter."""
    request = _parsed(bridge_pb2.Request, data)
    if request is None:
        return
    request.poll.wait_ms = 0 if request.HasField("poll") else request.poll.wait_ms
    taken: list[Any] = []
    endpoint = BridgeEndpoint(taken.append, lambda *query: (200, {"query": list(map(str, query))}), lambda: None)
    epoch = request.plugin_epoch or "e"
    endpoint.handle(bridge_pb2.Request(plugin_epoch=epoch, id=1, hello=bridge_pb2.Hello()))
    request.plugin_epoch = epoch
    response = endpoint.handle(request)
    assert response.ByteSize() >= 0
    repr(taken)


def effects(data: bytes) -> None:
    """A random effect reaches its Agent or the plugin as a message that can be parsed again."""
    rng = random.Random(data)
    known = Contention(8, rng.choice((1.0, math.inf, 1e300)), NOW_S, 0.0, 600.0)
    gpus = tuple(Gpu("n1", i) for i in range(rng.randrange(5)))
    text = data.decode("utf-8", "replace")[:100]
    for effect in (
        ev.SendRegistered(APP, known, (HeldGrant("g", gpus, 1.0, 0.0),)),
        ev.SendHosts(APP),
        ev.SendFinish(APP, text),
        ev.SendAskRho(APP, "r", known, frozenset(gpus), 1.0),
        ev.SendOffer(APP, "r", known, {"n1": 2}, gpus, 1.0),
        ev.SendRevoke(APP, gpus, 1.0, 1.0, text),
        ev.SendUseReply(APP, text, True, text),
    ):
        sent = agent_messages.message_of(effect, lambda: agent_messages.hosts_of(TOPOLOGY))
        assert pb.ArbiterMessage.FromString(sent.SerializeToString()) == sent


# ---- sequences of messages


def story(rng: random.Random, kinds: tuple[type[Any], ...]) -> bytes:
    """Some messages, each behind its kind and its length."""
    parts = []
    for _ in range(rng.randrange(1, STORY_MAX)):
        which = rng.randrange(len(kinds))
        data = message(rng, kinds[which]).SerializeToString()
        parts.append(bytes([which]) + len(data).to_bytes(2, "big") + data if len(data) < 65536 else b"")
    return b"".join(parts)


def _told(data: bytes, kinds: tuple[type[Any], ...]) -> Iterator[Any]:
    at = 0
    for _ in range(STORY_MAX):
        if len(data) < at + 3:
            return
        size = int.from_bytes(data[at + 1 : at + 3], "big")
        said = _parsed(kinds[data[at] % len(kinds)], data[at + 3 : at + 3 + size])
        at += 3 + size
        if said is not None:
            yield said


AGENTS_HEAR = (pb.ArbiterMessage, am.AmEvent)


def agents_mind(data: bytes) -> None:
    """No message of the Arbiter, YARN or a worker ends an Agent, and no message of the Agent then ends its stream."""
    brain, now_s = AgentCore(hyperband(jobs=3)), NOW_S
    _hear(brain, pb.ArbiterMessage(registered=_REGISTERED), now_s)
    for number, said in enumerate(_told(data, AGENTS_HEAR)):
        now_s += (0.0, 0.5, 20.0)[number % 3]
        if isinstance(said, pb.ArbiterMessage) and said.WhichOneof("kind") == "from_worker":
            try:  # it comes through the relay
                workers = [w.worker_id for _, w in brain.workers()]
                said.from_worker.worker_id = workers[number % len(workers)] if workers else "w"
                said = pb.ArbiterMessage(from_worker=relayed.worker_message(said.from_worker))
            except Malformed:
                continue
        elif isinstance(said, pb.ArbiterMessage) and said.WhichOneof("kind") not in (
            "use_reply",
            "worker_gone",
            "finish",
        ):
            continue  # the Arbiter's own messages are trusted
        elif isinstance(said, am.AmEvent) and said.WhichOneof("kind") == "allocated":
            asked = [w.request_id for _, w in brain.workers()]
            said.allocated.allocation_request_id = asked[number % len(asked)] if asked else 1
        _hear(brain, said, now_s)
    for _ in range(3):
        now_s += 10.0
        _hear(brain, None, now_s)
    _hear(brain, LinkLost(), now_s)
    json.dumps(brain.dump())


_REGISTERED = pb.Registered(
    contention=pb.Contention(cluster_gpus=8, n_avg=1.0, now_s=NOW_S, submitted_s=990.0, lease_s=600.0),
    hosts=[pb.Host(host=h, rack="r", gpus=4, gpu_type="gpu") for h in ("n1", "n2")],
    grants=[pb.Grant(grant_id="g", gpus=[pb.MachineGpuIds(host="n1", gpu_ids=[0, 1, 2, 3])], end_s=1e9)],
)


def _hear(brain: AgentCore, event: Any, now_s: float) -> None:
    for command in brain.handle(event, now_s):
        if not isinstance(command, pb.AgentMessage):
            continue
        kind = command.WhichOneof("kind")
        if kind == "use":  # is answered at once
            reply = pb.UseReply(use_id=command.use.use_id, accepted=True)
            brain.handle(pb.ArbiterMessage(use_reply=reply), now_s)
        elif kind != "to_worker":
            agent_messages.event_of(APP, command, HOSTS)
    agent_messages.agent_up(APP, "ann", brain.register().register)


ARBITERS_HEAR = (pb.AgentMessage, bridge_pb2.Event)
POLICIES = ("isonomy", "oef", "gavel", "tiresias")


def arbiters_mind(data: bytes) -> None:
    """No message of Agents or the plugin, before or after Hello, ends the Arbiter; its journal gives its state."""
    policy = registry.make(POLICIES[len(data) % len(POLICIES)])
    arbiter, now_s, folded = Arbiter(Settings(recovery_s=0.0), policy), NOW_S, Durable()
    for number, said in enumerate(_told(data, ARBITERS_HEAR)):
        now_s += (0.0, 0.3, 5.0)[number % 3]
        if number == 2:
            _step(arbiter, folded, _SNAPSHOT, now_s, policy)
        try:
            event: Any
            if isinstance(said, bridge_pb2.Event):
                clip(said)  # as the endpoint does
                event = bridge_translate.event_of(said)
            elif said.WhichOneof("kind") == "register":
                event = agent_messages.agent_up(APP, "ann", said.register)
            elif said.WhichOneof("kind") == "to_worker":
                continue
            else:
                event = agent_messages.event_of(APP, said, HOSTS)
        except (Malformed, bridge_translate.Unreadable):
            continue
        if event is not None:
            _step(arbiter, folded, event, now_s, policy)
    for _ in range(6):
        now_s += 7.0
        _step(arbiter, folded, ev.Tick(), now_s, policy)
    assert folded.dump() == arbiter.durable.dump()


_SNAPSHOT = ev.ClusterSnapshot(
    True,
    tuple(Node(f"{h}:8041", h, "r", 4) for h in ("n1", "n2")),
    tuple(
        YarnApp(
            app_id, "ann", "root.default", "a", "SUBMARINE", 990.0, frozenset({"isonomy"}), "appattempt_1_0001_000001"
        )
        for app_id in (APP, "application_1_0002")
    ),
    (),
    (),
    (),
)


def _step(arbiter: Arbiter, folded: Durable, event: Any, now_s: float, policy: Any) -> None:
    todo = [event]
    for _ in range(20):
        if not todo:
            return
        for effect in arbiter.handle(todo.pop(0), now_s):
            if isinstance(effect, ev.Solve):
                plan = policy.decide(effect.snapshot, effect.bids, random.Random(effect.seed))
                todo.append(ev.Decided(effect.snapshot.round_id, plan))
            elif isinstance(effect, ev.Place | ev.Kill | ev.Preempt):
                bridge_translate.directive_to_wire(effect)
            else:
                agent_messages.message_of(effect, lambda: agent_messages.hosts_of(arbiter.cluster.machines.known))
        for fact in arbiter.take_facts():
            folded.apply(fact)


# ---- numbers in words

_CELLS = """
levels: {node: 4}
hosts: [n1, n2]
virtual_clusters:
  root.a: {node: 1}
  root.b: {node: 1}
"""
_VERBS = ("exchange-offer", "exchange-request", "exchange-withdraw")


def _params(data: bytes) -> dict[str, str]:
    """`name=value` lines."""
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    return {name: text for name, _, text in lines if name}


def rest_numbers(data: bytes) -> None:
    """No parameter of REST gives the Arbiter a time that it cannot wait for, or a number that is none."""
    params = _params(data)
    for name in ("n", "wait_s", "limit", "since", "hours"):
        with suppress(Refusal):
            whole_number(params, name, 1, 0, int(BOUNDS[name].high))
    supply = supply_of(_CELLS)
    arbiter = Arbiter(Settings(recovery_s=0.0), registry.make("isonomy"), supply=supply)
    arbiter.handle(_SNAPSHOT, NOW_S)
    given = {k: v for k, v in params.items() if k in cells_view.PARAMS}
    for verb in _VERBS:
        try:
            posted = cells_view.posting(arbiter, NOW_S, verb, given)
            cells_view.check(arbiter, NOW_S, posted)
        except Refusal:
            continue
        arbiter.handle(posted, NOW_S)
        cells_view.outcome(arbiter, posted)
        json.dumps([str(fact) for fact in arbiter.take_facts()], allow_nan=False)
    wake_s = arbiter.next_wake_s(NOW_S)
    assert wake_s is None or wake_s <= max(LAST_S, NOW_S + LONGEST_S)


def _odd_params(rng: random.Random) -> bytes:
    odd = ("1e308", "inf", "nan", "-1", "1.7e12", "1e10", "9" * 400, "0x10", "\u0661", "3600", "", "1_0", " 5 ")
    names = (*sorted(cells_view.PARAMS), "n", "wait_s", "limit", "since", "hours")
    given = {name: rng.choice((*odd, "node:1", "root.a")) for name in rng.sample(names, rng.randint(1, 6))}
    given |= {"vc": "root.a", "cells": f"node:{rng.choice(('1', '0', '99', '9' * 30))}"}
    return "\n".join(f"{k}={v}" for k, v in given.items()).encode()


def app_tags(data: bytes) -> None:
    """Whatever the tags of an app without an Agent say, its demand, rho and end are numbers."""
    said = frozenset(f"{name}={text}" for name, text in _params(data).items())
    app = YarnApp(APP, "ann", "root.default", "a", "YARN", 990.0, said, "appattempt_1_0001_000001")
    longest_s = tags.max_s(app)
    assert longest_s is None or BOUNDS[tags.MAX_HOURS].holds(longest_s / 3600 * (1 - 1e-12))
    assert tags.declared(app).isprintable()
    arbiter = Arbiter(Settings(recovery_s=0.0), registry.make("themis"))
    arbiter.handle(dataclasses.replace(_SNAPSHOT, apps=(app,)), NOW_S)
    arbiter.handle(ev.AskChanged(Ask(app.attempt_id, APP, 1, 1, 2)), NOW_S)
    effects = arbiter.handle(ev.Tick(), NOW_S + 9.0)
    rhos = [v.rho for e in effects if isinstance(e, ev.Solve) for v in e.snapshot.apps]
    assert all(rho is not None and math.isfinite(rho) for rho in rhos), said


def _odd_tags(rng: random.Random) -> bytes:
    odd = ("1e308", "1e10", "inf", "nan", "-1", "0", "2", "1e-300", "9" * 400, "", "\u0662")
    names = (tags.MAX_HOURS, tags.GANG, tags.INTERACTIVE)
    return "\n".join(f"{name}={rng.choice(odd)}" for name in rng.sample(names, rng.randint(1, 3))).encode()


# ---- files and texts


def token(data: bytes) -> None:
    """A text that was not issued proves nothing."""
    try:
        claims = _TOKENS.verify(data.decode("latin-1"))
    except TokenError:
        return
    assert claims.app_id == APP


_TOKENS = Tokens(b"k" * 32)


def secrets(data: bytes) -> None:
    """A file of a key or of the bridge's token is used or refused."""
    with suppress(SecretFileError):
        assert len(read_or_make_key(_file(data))) >= 32
    with suppress(BridgeError):
        assert len(bridge_token(_file(data))) == 64


def isonomy_yaml(data: bytes) -> None:
    """isonomy.yaml is a configuration, or lines that say what is wrong."""
    _yaml(data, Config)


def topology_yaml(data: bytes) -> None:
    """The topology file likewise."""
    found = _yaml(data, TopologySpec)
    if found is not None:
        with suppress(ConfigError):
            load_topology(_file(data))


def cells_yaml(data: bytes) -> None:
    """The cells file likewise."""
    found = _yaml(data, CellsFile)
    if found is not None:
        with suppress(ConfigError):
            layout(found, TOPOLOGY)


def _yaml(data: bytes, model: Any) -> Any | None:
    try:
        return parse(data.decode("utf-8", "replace"), model, "file")
    except ConfigError:
        return None


def render_values(data: bytes) -> None:
    """Values of `config render` (a file, or --set lines behind a "-") are files that can be read, or lines of mistakes."""
    text = data.decode("utf-8", "replace")
    try:
        over = rendering.parse_set(text[1:].splitlines()) if text[:1] == "-" else mapping(text, "values")
        files = rendering.render(over)
    except ConfigError:
        return
    for name, made in files.items():
        if name.endswith(".xml"):
            read_site(_file(made.encode(), name))
    assert parse(files["isonomy.yaml"], Config, "isonomy.yaml")


def _odd_values(rng: random.Random) -> bytes:
    """Some keys of the defaults with odd values."""
    over: dict[str, Any] = {}
    for section, values in rng.choices(list(rendering.defaults().items()), k=rng.randint(1, 4)):
        keys = list(values) if isinstance(values, dict) else ["x"]
        for key in rng.choices(keys, k=rng.randint(1, 3)):
            over.setdefault(section, {})[key] = _odd_value(rng, values[key] if isinstance(values, dict) else None)
    if rng.random() < 0.4:
        lines = (f"{s}.{k}={json.dumps(v)}" for s, values in over.items() for k, v in values.items())
        return ("-" + "\n".join(lines)).encode()
    return json.dumps(over).encode()


def _odd_value(rng: random.Random, default: Any) -> Any:
    values = [None, True, [], {}, {"a": "b"}, {"a\n": {"b": None}}, ["a", None], -1, 10**400]
    texts = ["{{ 1 }}", "]]>", "a: b", "- x", "\x00", "\ud800", "&#0;", "<!--", "8088"]
    odd = rng.choice([*TEXTS, *FLOATS, *values, *texts])
    return default if rng.random() < 0.2 else odd


def search_space(data: bytes) -> None:
    """A search space is refused at submission, or every draw from it is a configuration."""
    try:
        space = load_search_space(_file(data))
    except UsageError:
        return
    for seed in range(3):
        drawn = sample(json.loads(json.dumps({"parameters": space})), random.Random(seed))
        assert all(isinstance(v, str) for v in drawn.values())


def site_xml(data: bytes) -> None:
    """A Hadoop site file is properties, or one line."""
    path = _file(data, "yarn-site.xml")
    with suppress(ConfigError):
        read_site(path)
        rm_web_url(conf_dir=path.parent)


FORMATS = ("", "philly", "gavel", "own", "pai", *CSV_FORMATS)


def trace(data: bytes) -> None:
    """A trace is a workload of finite jobs, or BadTrace."""
    if not data:
        return
    name = FORMATS[data[0] % len(FORMATS)]
    path = _file(data[1:], "trace")
    try:
        found = CATALOGUE.open(f"{name}:{path}" if name else path, 1, {"bad_rows": "skip"} if data[0] & 64 else None)
    except BadTrace:
        return
    for app in found.workload.apps:
        assert app.gang_gpus >= 1
        assert math.isfinite(app.submitted_s)
        assert math.isfinite(app.work_gpu_s)


def log_lines(data: bytes) -> None:
    """A program's log never raises; what it says fits into a message."""
    parser = logparse.LogParser()
    begin_s = time.thread_time()
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines()):
        said = parser.feed(line, float(number))
        if isinstance(said, logparse.CheckpointLine):
            pb.WorkerCheckpoint(step=said.step, path=said.path)
        elif said is not None:
            assert 0 <= said.step <= logparse.STEP_MAX
            assert 0 <= (said.iter_time_s or 0.0) <= logparse.ITERATION_MAX_S
            pb.WorkerProgress(step=said.step, loss=said.loss or 0.0, accuracy=said.accuracy or 0.0)
    lines = 1 + data.count(b"\n")
    assert time.thread_time() - begin_s < 1.0 + 0.05 * lines, "a line that takes long stops the training's output"


def kept_state(data: bytes) -> None:
    """A file of stored apps and clocks is read, or ignored."""
    found = kept.state_in(data)
    if found is not None:
        Durable.load(found.state)


def kept_speeds(data: bytes) -> None:
    """A file of stored speeds is read, or refused by an error that the Agent handles."""
    try:
        known = json.loads(data)
        speeds = Speeds(SPEC)
        speeds.restore(known)
    except (KeyError, TypeError, ValueError, RecursionError):
        return
    speeds.types = ("K80", "V100")
    assert all(0 < v < math.inf for v in speeds.vector().values())


def app_spec(data: bytes) -> None:
    """The app's file is a spec, or names what is wrong."""
    with suppress(KeyError, ValueError, TypeError, OverflowError, AttributeError, RecursionError):
        spec = AppSpec.load(_file(data))
        spec.command({"lr": "0.1; rm -rf /"})


def _of(*kinds: type[Any]) -> Callable[[random.Random], bytes]:
    return lambda rng: bytes(message(rng, rng.choice(kinds)).SerializeToString())


TARGETS: dict[str, Target] = {
    "agent_message": Target(agent_message, _of(pb.AgentMessage)),
    "worker_message": Target(worker_message, _of(pb.WorkerMessage)),
    "bridge_message": Target(bridge_message, _of(bridge_pb2.Request)),
    "effects": Target(effects),
    "agents_mind": Target(agents_mind, lambda rng: story(rng, AGENTS_HEAR)),
    "arbiters_mind": Target(arbiters_mind, lambda rng: story(rng, ARBITERS_HEAR)),
    "rest_numbers": Target(rest_numbers, _odd_params),
    "app_tags": Target(app_tags, _odd_tags),
    "token": Target(token),
    "secrets": Target(secrets),
    "isonomy_yaml": Target(isonomy_yaml),
    "topology_yaml": Target(topology_yaml),
    "cells_yaml": Target(cells_yaml),
    "render_values": Target(render_values, _odd_values),
    "search_space": Target(search_space),
    "site_xml": Target(site_xml),
    "trace": Target(trace),
    "log_lines": Target(log_lines),
    "kept_state": Target(kept_state),
    "kept_speeds": Target(kept_speeds),
    "app_spec": Target(app_spec),
}


def quiet() -> None:
    """Silences the log lines of expected refusals."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
