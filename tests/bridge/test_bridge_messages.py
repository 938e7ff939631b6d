"""bridge.proto and the Arbiter's values agree."""

import pytest

from pycontrol.bridge import bridge_messages
from pycontrol.bridge.bridge_messages import Unreadable, directive_to_wire, event_of, host_of, snapshot_of
from pycontrol.model import bounds
from pycontrol.model.cluster import Ask, Container, Mode, ModeSwitch, Node, PartitionCapacity, Queue, YarnApp
from pycontrol.model.events import (
    AppAdded,
    AppRemoved,
    AppUpdated,
    AskChanged,
    AttemptAdded,
    AttemptRemoved,
    ClusterChanged,
    ClusterReady,
    ClusterSnapshot,
    ContainerGone,
    ContainerUp,
    DirectiveDone,
    Kill,
    NodeDown,
    NodeUp,
    Place,
    Preempt,
)
from pycontrol.model.topology import Gpu
from pycontrol.wire.v1 import bridge_pb2 as pb

WIRE_NODE = pb.Node(
    node_id="n1:8041",
    host="n1",
    rack="/a",
    gpus=4,
    memory_mb=1024,
    vcores=8,
    attributes={"k": "v"},
    decommissioning=True,
    partition="fast",
    untagged_gpus=1,
    withheld="w",
)
NODE = Node(
    "n1:8041",
    "n1",
    "/a",
    4,
    1024,
    8,
    {"k": "v"},
    decommissioning=True,
    partition="fast",
    untagged_gpus=1,
    withheld="w",
)
WIRE_APP = pb.Application(
    app_id="app",
    user="ann",
    queue="root.q",
    name="n",
    application_type="YARN",
    submit_time_ms=1500,
    tags=["isonomy"],
    attempt_id="at",
    priority=4,
)
APP = YarnApp("app", "ann", "root.q", "n", "YARN", 1.5, frozenset({"isonomy"}), "at", 4)
WIRE_ASK = pb.Ask(
    attempt_id="at",
    app_id="app",
    allocation_request_id=7,
    priority=3,
    gpus=2,
    memory_mb=512,
    vcores=1,
    count=2,
    only_on=["n1"],
    node_label_expression="",
    master=True,
)
ASK = Ask("at", "app", 7, 2, 2, 3, 512, 1, ("n1",), "", True)
WIRE_CONTAINER = pb.GpuContainer(
    container_id="c1",
    attempt_id="at",
    app_id="app",
    node_id="n1:8041",
    gpu_ids=[2, 0],
    lease_id="l1",
    allocation_request_id=7,
    state="RUNNING",
    gpus=2,
)
CONTAINER = Container("c1", "app", "n1:8041", (Gpu("n1", 0), Gpu("n1", 2)), "l1", 7, "at", 2)


@pytest.mark.parametrize(
    ("wire", "event"),
    [
        ({"node_up": WIRE_NODE}, NodeUp(NODE)),
        ({"node_down": pb.NodeDown(node_id="n1:1", reason="LOST")}, NodeDown("n1:1", "LOST")),
        (
            {"unasked": pb.Snapshot(queues=[pb.Queue(path="root.q")], down=[pb.NodeDown(node_id="n9:1")])},
            ClusterChanged((Queue("root.q", 0.0, 0.0),), (NodeDown("n9:1"),)),
        ),
        ({"app_added": WIRE_APP}, AppAdded(APP)),
        ({"app_updated": WIRE_APP}, AppUpdated(APP)),
        ({"app_removed": pb.AppRemoved(app_id="app", final_state="FAILED")}, AppRemoved("app", "FAILED")),
        ({"attempt_added": pb.AttemptAdded(attempt_id="at", app_id="app")}, AttemptAdded("at", "app")),
        ({"attempt_removed": pb.AttemptRemoved(attempt_id="at", app_id="app")}, AttemptRemoved("at", "app")),
        ({"ask": WIRE_ASK}, AskChanged(ASK)),
        ({"container_allocated": WIRE_CONTAINER}, ContainerUp(CONTAINER)),
        ({"container_running": WIRE_CONTAINER}, ContainerUp(CONTAINER, running=True)),
        (
            {"container_completed": pb.ContainerCompleted(container_id="c1", exit_status=-102)},
            ContainerGone("c1"),
        ),
        (
            {"directive_result": pb.DirectiveResult(directive_id="d1", ok=True, container_id="c1", reason="r")},
            DirectiveDone("d1", True, "c1", "r"),
        ),
        (
            {"directive_result": pb.DirectiveResult(directive_id="d1", reason="r", excluded=True)},
            DirectiveDone("d1", False, "", "r", excluded=True),
        ),
        ({"ready": pb.Ready()}, ClusterReady()),
        ({}, None),
    ],
)
def test_each_message_of_the_plugin_becomes_its_event(wire, event) -> None:
    assert event_of(pb.Event(seq=1, **wire)) == event


@pytest.mark.parametrize(
    ("said", "since_s"),
    [
        ("1-1700000000", {1: 1.7e9}),
        ("0-1700000000_3-1700000060", {0: 1.7e9, 3: 1.70000006e9}),
        ("4-1700000000_x-1_1-y_2_-_1-1700000000000", {}),
        ("", {}),
    ],
)
def test_a_node_attribute_names_idle_gpus(said: str, since_s: dict[int, float]) -> None:
    node = bridge_messages.node_of(pb.Node(node_id="n1:8041", gpus=4, attributes={"nm.yarn.io/isonomy-idle": said}))
    assert node.idle_since_s == since_s


@pytest.mark.parametrize(
    ("attributes", "bad", "note"),
    [
        ({}, set(), ""),
        ({"nm.yarn.io/bad-gpus": "none"}, set(), ""),
        ({"nm.yarn.io/bad-gpus": "1_3"}, {1, 3}, ""),
        ({"nm.yarn.io/bad-gpus": "0", "rm.yarn.io/bad-gpus": "2"}, {0, 2}, ""),
        ({"rm.yarn.io/bad-gpus": "all"}, {0, 1, 2, 3}, ""),
        ({"rm.yarn.io/bad-gpus": "1_9"}, {1}, ""),
        ({"rm.yarn.io/bad-gpus": "1-3", "nm.yarn.io/bad-gpus": "2"}, {2}, "bad-gpus=1-3 cannot be read"),
        ({"rm.yarn.io/other": "1"}, set(), ""),
    ],
)
def test_node_attributes_name_bad_gpus(attributes: dict[str, str], bad: set[int], note: str) -> None:
    event = event_of(pb.Event(node_up=pb.Node(node_id="n1:1", gpus=4, attributes=attributes)))
    assert isinstance(event, NodeUp)
    assert event.node.bad_gpus == bad
    assert note in event.node.note
    assert bool(note) == bool(event.node.note)
    assert list(event.node.good_gpus) == [i for i in range(4) if i not in bad]


def test_snapshot_leaves_ended_containers_out() -> None:
    ended = pb.GpuContainer(container_id="c2", app_id="app", node_id="n1:8041", state="COMPLETED")
    killed = pb.GpuContainer(
        container_id="c3", app_id="app", node_id="n1:8041", gpu_ids=[1], gpus=1, state="KILLED", ending=True
    )
    ending = Container("c3", "app", "n1:8041", (Gpu("n1", 1),), gpu_count=1, ending=True, plain=True)
    queue = pb.Queue(path="root.q", absolute_capacity=0.5, absolute_max_capacity=1.0)
    parent = pb.Queue(
        path="root",
        parent=True,
        absolute_capacity=1.0,
        absolute_max_capacity=1.0,
        user_limit=0.25,
        user_limit_factor=2.0,
        default_partition="fast",
        stopped=True,
        unmanaged=True,
        partitions={
            "": pb.PartitionCapacity(absolute_capacity=0.5, absolute_max_capacity=0.75),
            "fast": pb.PartitionCapacity(absolute_capacity=1.0, absolute_max_capacity=1.0, gpus=0, max_gpus=4),
        },
    )
    tree = Queue(
        "root",
        1.0,
        1.0,
        False,
        0.25,
        2.0,
        {"": PartitionCapacity(0.5, 0.75), "fast": PartitionCapacity(1.0, 1.0, 0, 4)},
        "fast",
        True,
        True,
    )
    snapshot = pb.Snapshot(
        ready=True,
        nodes=[WIRE_NODE],
        applications=[WIRE_APP],
        asks=[WIRE_ASK],
        containers=[WIRE_CONTAINER, ended, killed],
        queues=[queue, parent],
        rm_life="e",
        down=[pb.NodeDown(node_id="n9:1", reason="LOST")],
    )
    assert snapshot_of(snapshot) == ClusterSnapshot(
        True, (NODE,), (APP,), (ASK,), (CONTAINER, ending), (Queue("root.q", 0.5, 1.0), tree), "e",
        down=(NodeDown("n9:1", "LOST"),),
    )  # fmt: skip


def test_the_mode_and_that_of_plugins_that_name_none() -> None:
    told = pb.Mode(name="unreadable", queues=["root.a"], by="ann", at_ms=1500, problem="no file")
    assert snapshot_of(pb.Snapshot(mode=told)).switch == ModeSwitch(Mode.UNREADABLE, ("root.a",), "ann", 1.5, "no file")
    assert snapshot_of(pb.Snapshot(shadow=True)).switch == ModeSwitch(Mode.SHADOW)
    assert snapshot_of(pb.Snapshot()).switch == ModeSwitch(Mode.ON)
    with pytest.raises(Unreadable, match="must be one of on, shadow, off, unreadable"):
        snapshot_of(pb.Snapshot(mode=pb.Mode(name="dark")))


def test_an_ask_without_a_label_follows_its_queue() -> None:
    event = event_of(pb.Event(ask=pb.Ask(attempt_id="at", app_id="app", gpus=1, count=1)))
    assert isinstance(event, AskChanged)
    assert event.ask.partition is None


def test_directives() -> None:
    place = directive_to_wire(Place("d1", ASK, "n1:8041", (Gpu("n1", 2), Gpu("n1", 0)), "l1"))
    assert place == pb.Directive(
        id="d1",
        place=pb.Place(
            attempt_id="at",
            allocation_request_id=7,
            priority=3,
            node_id="n1:8041",
            gpu_ids=[0, 2],
            lease_id="l1",
            memory_mb=512,
            vcores=1,
        ),
    )
    preempt = directive_to_wire(Preempt("d2", "c1", 12.3456))
    assert preempt == pb.Directive(id="d2", preempt=pb.Preempt(container_id="c1", deadline_ms=12346))
    kill = directive_to_wire(Kill("d3", "c1", "over"))
    assert kill == pb.Directive(id="d3", kill=pb.Kill(container_id="c1", reason="over"))
    assert directive_to_wire(Kill("d3", "c1", "over", again=True)).kill.again


def test_hosts_and_nameless_things() -> None:
    assert [host_of(x) for x in ("n1:8041", "::1:8041", "n1")] == ["n1", "::1", "n1"]
    with pytest.raises(Unreadable, match="container_id"):
        event_of(pb.Event(container_allocated=pb.GpuContainer(node_id="n1:1")))


@pytest.mark.parametrize("said", ["all", "9" * 5000, "1_" + "9" * 30, "\u00b2", "-1"])
def test_a_node_of_any_number_of_gpus_is_bounded(said: str) -> None:
    message = pb.Node(node_id="n1:8041", gpus=2**31 - 1, attributes={"nm.yarn.io/bad-gpus": said})
    assert bounds.clip(message) == ["Node.gpus: must be from 0 to 1024 (got 2.14748e+09)"]
    node = bridge_messages.node_of(message)
    assert node.gpus == 1024
    assert all(0 <= i < node.gpus for i in node.bad_gpus)
