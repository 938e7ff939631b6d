"""dev-cluster's parts that need no Hadoop."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

import click
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev-cluster"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev-cluster" / "demo"))

import busy
import cells_demo
import demo
import together
from devcluster import free_ports, gpus, lifecycle, prerequisites, processes, readiness
from devcluster.configure import configure
from devcluster.devcluster_error import DevClusterError
from devcluster.folder import Cluster, Layout, Options, load
from foreseen import Advice, Foreseen

from pycontrol.arbiter.ledger.lease import Lease
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.config import ConfigError, load_topology_spec, parse
from pycontrol.model.topology import Gpu
from pycontrol.runtime.spans import LeaseInterval
from tests.cluster.rig import slowness
from tests.httpd import Reply, name_a_proxy, serving


def nvidia_smi(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program of this name first in PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_real_gpus_are_those_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo NVIDIA H200; echo NVIDIA H200", monkeypatch)
    spec = gpus.topology(None, "real")
    assert [(m.gpus, m.type) for m in spec.machines] == [(2, "NVIDIA-H200")]
    assert not spec.virtual_gpus
    with pytest.raises(DevClusterError, match="one machine with at most 2 GPUs"):
        gpus.topology(gpus.DEFAULT_TOPOLOGY, "real")


def test_no_real_gpu_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 'No devices were found'; exit 6", monkeypatch)
    with pytest.raises(DevClusterError, match="finds no GPU; use --gpus virtual"):
        gpus.topology(None, "real")


def test_default_topology_has_two_racks_and_machines_of_different_size() -> None:
    topology = gpus.topology(None, "virtual").topology()
    assert len(topology.racks) == 2
    assert {m.gpus for m in topology.machines.values()} == {2, 4}
    assert all(m.virtual for m in topology.machines.values())


def test_ports_are_free_and_a_taken_one_is_named() -> None:
    hosts = ["127.0.10.1", "127.0.20.1"]
    chosen = free_ports.choose(hosts)
    assert len(set(chosen.values())) == len(chosen)
    assert free_ports.taken(chosen, hosts) == []
    with socket.create_server(("127.0.20.1", chosen["nm"])):
        assert free_ports.taken(chosen, hosts) == ["nm"]


@pytest.mark.parametrize("host", ["10.1.2.3", "machine"])
def test_a_host_that_is_not_a_loopback_address_is_refused(host: str) -> None:
    with pytest.raises(DevClusterError, match=f"host {host} must be a loopback address"):
        free_ports.check_host(host)


def test_a_path_with_a_blank_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where there is none
    blank = tmp_path / "a b"
    with pytest.raises(DevClusterError, match=f"no path with a blank: {blank}"):
        lifecycle.up(Layout(blank), None, None, print)
    assert not blank.exists()
    monkeypatch.setattr(lifecycle, "REPO", blank)
    with pytest.raises(DevClusterError, match=f"no path with a blank: {blank}"):
        lifecycle.up(Layout(tmp_path / "dc"), None, None, print)


def test_each_machine_tells_its_containers_type_and_speed_of_its_virtual_gpus(tmp_path: Path) -> None:
    expected = {f"127.0.10.{k}": (f"virtual-{t}", v) for k, t, v in ((1, "a", "1.0"), (2, "b", "2.0"), (3, "c", "4.0"))}
    spec = gpus.topology(gpus.DEFAULT_TOPOLOGY.parent / "demo" / "oef.yaml", "virtual")
    cluster = Cluster(Layout(tmp_path), Options(), free_ports.choose(list(expected)), spec)
    configure(cluster)
    for role, machine in zip(cluster.nodemanagers, spec.machines, strict=True):
        site = ElementTree.parse(cluster.layout.conf_of(role) / "yarn-site.xml").getroot()
        values = {p.findtext("name"): p.findtext("value") for p in site.iter("property")}
        told = (values[f"yarn.nodemanager.admin-env.ISONOMY_VIRTUAL_GPU_{what}"] for what in ("TYPE", "SPEED"))
        assert tuple(told) == expected[machine.host]


def test_an_older_hadoop_has_jars_options_and_keys_of_its_own(tmp_path: Path) -> None:
    spec = gpus.topology(None, "virtual")
    hosts = [m.host for m in spec.machines]
    for hadoop, jars, key in (("3.3.6", "hadoop-3.3.6", "external.classes"), ("3.5.0", "hadoop", "custom.webservice")):
        cluster = Cluster(Layout(tmp_path / hadoop), Options(hadoop=hadoop, plain=True), free_ports.choose(hosts), spec)
        (tmp_path / hadoop).mkdir()
        command = " ".join(processes.java_command(cluster, "resourcemanager", Path("/java")))
        assert f"/build/{jars}/lib/*" in command
        assert ("--add-opens" in command) == (hadoop == "3.3.6")
        cluster.options = Options(hadoop=hadoop)
        configure(cluster)
        assert key in (cluster.layout.conf / "yarn-site.xml").read_text()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.13\"' >&2\n")
    java.chmod(0o755)
    assert prerequisites.daemons_java("3.4.2", str(tmp_path)) == tmp_path
    for hadoop, problem in (("3.5.0", "is Java 11, not 17"), ("new", "is no version such as")):
        with pytest.raises(DevClusterError, match=problem):
            prerequisites.daemons_java(hadoop, str(tmp_path))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"speeds": {"H100": 9.0}}, "no machine has the type H100; types are virtual-a"),
        ({"speeds": {"virtual-a": 0.0}}, "must be > 0"),
    ],
)
def test_a_speed_is_one_of_a_virtual_type(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    machine = {"host": "127.0.10.1", "gpus": 2, "type": "virtual-a"}
    file = tmp_path / "topology.yaml"
    file.write_text(yaml.safe_dump({"virtual_gpus": True, "racks": [{"name": "r", "machines": [machine]}], **change}))
    with pytest.raises(ConfigError, match=problem):
        load_topology_spec(file)


@pytest.mark.parametrize(
    ("others", "cores", "slower"), [(0, 2, 1.0), (0.6, 2, 1.0), (4, 2, 3.0), (2, 2, 2.0), (90, 2, 4.0)]
)
def test_a_busy_machine_takes_longer_for_everything(
    others: float, cores: int, slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy.time, "sleep", lambda s: None)
    assert busy.factor(lambda: others, cores) == slower


def test_what_runs_beside_is_the_kernels_count(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 1 2 3\nprocs_running 5\nprocs_blocked 0\n")
    assert busy.runnable(stat) == 4, "this one left out"
    assert busy.runnable(tmp_path / "none") == 0


def test_a_kept_demo_prints_its_page_and_how_to_stop_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = demo.Demo(tmp_path, tmp_path / "report.json", (), cluster={"rm_web": "http://rm:8088"})
    left.kept()
    said = capsys.readouterr().out
    assert "http://rm:8088/ws/v1/cluster/isonomy/ui" in said
    assert f"to end all of it: {demo.REPO}/dev-cluster/down --dir {tmp_path}\n" in said


def test_a_demo_ends_at_once_with_the_app_that_failed_or_was_not_submitted(tmp_path: Path) -> None:
    class Seen(cells_demo.CellsDemo):
        states: ClassVar[dict[str, dict[str, Any]]] = {}

        def yarn_apps(self) -> dict[str, dict[str, Any]]:
            return self.states

        def show_rounds(self) -> None:
            raise AssertionError("it goes on")

    seen = Seen(tmp_path, tmp_path / "report.json", (), cluster={"env": {}, "rm_web": ""})
    (tmp_path / "log").mkdir()
    seen.apps.append(demo.App("a", 0, ["false"]))
    seen.submit(seen.apps[0])
    assert seen.apps[0].process is not None
    assert seen.apps[0].process.wait(10) == 1
    with pytest.raises(click.ClickException, match=r"a was not submitted; see .*submit-a\.log"):
        seen.see("GPUs of a", 60, lambda: False)
    seen.states["a"] = {"finalStatus": "FAILED", "diagnostics": "out of memory"}
    with pytest.raises(click.ClickException, match="a failed: out of memory"):
        seen.see("GPUs of a", 60, lambda: False)


def test_what_ends_a_cluster_ends_a_kept_demos_control_plane_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept(demo.Demo):
        def get(self, path: str, **params: str) -> dict[str, Any]:
            return {"ready": True}

    program = tmp_path / "isonomy"
    program.write_text(f"#!{sys.executable}\nimport signal\nprint('ready', flush=True)\nsignal.pause()\n")
    program.chmod(0o755)
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(demo, "BIN", tmp_path)
    kept = Kept(tmp_path, tmp_path / "report.json", (), cluster={"rm_web": "http://rm:8088", "isonomy_yaml": "-"})
    try:
        kept.serve()
        assert kept.control is not None
        assert processes.stop_all(Layout(tmp_path)) == 1
        assert kept.control.wait(10) == -signal.SIGTERM
    finally:
        kept.stop()


def test_what_demo_cells_lends_is_lent_for_longer_than_research_may_take_to_use_it(tmp_path: Path) -> None:
    limits_s = list[float]()

    class Slow(cells_demo.CellsDemo):
        def see(self, what: str, limit_s: float, seen: Callable[[], Any]) -> float:
            limits_s.append(limit_s)
            return limit_s

        def get(self, path: str, **params: str) -> dict[str, Any]:
            return {"deals": [{"end_s": cells_demo.LENT_S}]}

        def held(self, name: str) -> list[dict[str, Any]]:
            return [{"guaranteed": True}] * 8

        def isonomy(self, *words: str) -> None:
            pass

        def start(self, name: str, queue: str, gpus: int, *more: str) -> None:
            pass

    slow = Slow(tmp_path, tmp_path / "report.json", ())
    end_s = cells_demo.lend(slow)
    cells_demo.borrow(slow)
    assert sum(limits_s) < end_s


def test_a_demo_names_each_command_of_the_operators_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "isonomy"
    program.write_text('#!/bin/sh\n[ "$2" = vision ]\n')
    program.chmod(0o755)
    monkeypatch.setattr(demo, "BIN", tmp_path)
    run = demo.Demo(tmp_path, tmp_path / "report.json", (), cluster={"rm_web": "http://rm:8088", "env": {}})
    for name in ("vision", "small"):
        run.isonomy("explain", name)
    assert run.refused == ["the answer of isonomy explain small (status 1)"]


def test_a_cluster_is_asked_past_a_proxy_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_a_proxy(monkeypatch)
    said = {"nodes": {"node": [{"id": "n"}]}, "apps": {"app": [{"name": "a"}]}}
    cluster = Cluster(Layout(tmp_path), Options(), free_ports.choose([]), gpus.topology(None, "virtual"))
    with serving(lambda _: Reply(said)) as url:
        cluster.ports |= dict.fromkeys(("namenode_web", "rm_web"), urlsplit(url).port or 0)
        assert readiness.nodes(cluster) == [{"id": "n"}]
        readiness.make_directories(cluster)
        readiness.switch_on(cluster)
        run = demo.Demo(tmp_path, tmp_path / "report.json", (), cluster={"rm_web": url})
        assert run.get("status") == said
        assert run.yarn_apps() == {"a": {"name": "a"}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_a_signal_ends_takes_its_cluster_down_whatever_signals_follow(
    tmp_path: Path, number: signal.Signals
) -> None:
    ended = []

    class Ending(demo.Demo):
        def up(self) -> None:
            pass

        def serve(self, policy: str | None = None) -> None:
            pass

        def down(self) -> None:
            for again in before:
                assert signal.getsignal(again) is signal.SIG_IGN
            ended.append(True)

    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    told = signal.set_wakeup_fd(-1)  # of a worker's session that another test has in this process
    try:
        with pytest.raises(SystemExit) as error, Ending(tmp_path, tmp_path / "report.json", ()).running():
            signal.raise_signal(number)
    finally:
        signal.set_wakeup_fd(told)
        for n, handler in before.items():
            signal.signal(n, handler)
    assert error.value.code == 128 + number
    assert ended


def test_a_demo_whose_large_app_fails_ends_and_names_what_was_never_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(demo.Demo):
        def submit(self, app: demo.App) -> None:
            app.process = subprocess.Popen(["true"])
            app.process.wait()

        def serve(self, policy: str | None = None) -> None:
            pass

        def isonomy(self, *words: str) -> None:
            pass

        def yarn_apps(self) -> dict[str, dict[str, Any]]:
            return {"large": {"id": "l", "name": "large", "state": "FAILED", "finalStatus": "FAILED"}}

    monkeypatch.setattr("time.sleep", lambda s: pytest.fail("it waits for what can no longer come"))
    monkeypatch.setattr(busy, "factor", lambda: 1.0)
    failing = Failing(tmp_path, tmp_path / "report.json", (), cluster={"rm_web": "http://127.0.0.1:1"})
    assert not failing.serve_by_size()
    said = capsys.readouterr().out
    assert "MISSING: small, which was never submitted" in said
    assert "MISSING: other, which was never submitted" in said


@pytest.mark.parametrize(
    ("stopped", "restored", "shown"),
    [
        ("Stopped on request at step 9, paced", "Restored checkpoint for 9 from hdfs://h/job002/ckpt-9-1a", True),
        ("Stopped on request at step 9, paced", "Restored checkpoint for 16 from hdfs://h/job000/ckpt-16-1a", False),
        ("Finished at step 9", "Restored checkpoint for 9 from hdfs://h/job002/ckpt-9-1a", False),
        ("Stopped on request at step 9, paced", "Trains to step 16", False),
    ],
)
def test_a_revoked_gang_resumed_only_if_a_worker_restored_what_it_left(
    tmp_path: Path, stopped: str, restored: str, shown: bool
) -> None:
    said = {
        "0": f"Saved checkpoint for 9 into hdfs://h/job002/ckpt-9-1a (0.519 sec)\nINFO:x:{stopped}\n",
        "1": restored,
    }
    for node, text in said.items():
        log = tmp_path / f"data/nodemanager-{node}/log/app/container_{node}/stderr"
        log.parent.mkdir(parents=True)
        log.write_text(f"INFO:tensorflow:{text}\n")
    app = {"id": "app", "revocations": 2, "restarts": 3, "final_state": "SUCCEEDED"}
    report = {"apps": [app], "seen": dict.fromkeys(demo.PROMISED, 1), "why_not": [{"came_true": True}]}
    run = demo.Demo(tmp_path, tmp_path / "report.json", ())
    assert run.checkpoints_s() == [0.519]
    assert demo.missed(report, run.resumed) == ([] if shown else ["a revoked gang that resumed"])


def test_a_cluster_of_another_version_is_read_by_the_options_that_are_known(tmp_path: Path) -> None:
    cluster = Cluster(
        Layout(tmp_path), Options(gpus="2x4", settings=("a=1",)), free_ports.choose([]), gpus.topology(None, "virtual")
    )
    cluster.layout.topology.parent.mkdir(parents=True, exist_ok=True)
    cluster.layout.topology.write_text(gpus.DEFAULT_TOPOLOGY.read_text())
    options = {"plain": False, "bypass": True, "gpus": "2x4", "standby": False, "settings": ["a=1"]}  # of version 0.1
    cluster.layout.description.write_text(json.dumps({"options": options, "ports": cluster.ports}))
    found = load(cluster.layout)
    assert found is not None
    assert found.options == cluster.options


def test_the_demo_compares_the_first_estimates_with_what_happened() -> None:
    def row(app_id: str, held: int, start_s: Any, end_s: Any) -> dict[str, Any]:
        return {"app_id": app_id, "gpus_held": held, "start_s": start_s, "end_s": end_s}

    seen = Foreseen()
    seen.look({})
    seen.look({"now_s": 5.0, "forecast": {"made_s": None}, "apps": [row("a", 0, None, None), row("b", 4, None, None)]})
    made = {"made_s": 10.0}
    apps = [row("a", 0, (15.0, 20.0, 30.0), (None, None, None)), row("b", 4, (5.0, 5.0, 5.0), (50.0, 60.0, None))]
    seen.look({"now_s": 12.0, "forecast": made, "apps": apps})
    later = [row("a", 0, (70.0, 80.0, 90.0), (100.0, 200.0, 300.0)), row("b", 4, None, (1.0, 2.0, 3.0))]
    seen.look({"now_s": 20.0, "forecast": {"made_s": 19.0}, "apps": later})
    seen.look({"now_s": 35.0, "forecast": made, "apps": [row("a", 2, None, None)]})
    found = seen.report({"a": "vision"}, {"a": 310.0, "b": 1000.0})
    assert "apps are expected to go on coming" in found["starts"].pop("note")
    assert found["starts"] == {
        "n": 1,
        "in_range": 0,
        "error_s": {"median": 15.0, "p95": 15.0, "n": 1},
        "rows": [{"app": "vision", "ahead_s": 25.0, "error_s": 15.0, "in_range": False}],
    }
    assert [(r["app"], r["error_s"], r["in_range"]) for r in found["ends"]["rows"]] == [
        ("b", 940.0, True),
        ("vision", 110.0, False),
    ]


@pytest.mark.parametrize("kind", ["lease", "end"])
def test_advice_is_asked_for_once_and_comes_true_when_the_gpus_are_given_back(kind: str) -> None:
    advice, asked = Advice("large"), list[str]()
    change = {"kind": kind, "app_id": "l", "sentence": "if large gave 2 GPUs back", "gets": {"gpus": {"n1": 2}}}

    def ask(app_id: str) -> dict[str, Any]:
        asked.append(app_id)
        return {"changes": [change], "now_s": 5.0} if app_id == "s" else {}

    def app(app_id: str, name: str, gpus: int) -> dict[str, Any]:
        return {"app_id": app_id, "name": name, "gpus_held": gpus, "gpus_wanted": 2}

    waiting = {"apps": [app("l", "large", 10), app("s", "small", 0), app("o", "other", 0)]}
    assert advice.look({"apps": [app("s", "small", 0)]}, ask) == []
    assert advice.look(waiting, ask) == ["why not small: if large gave 2 GPUs back"]
    assert advice.look(waiting, ask) == []
    assert asked == ["l", "s", "o", "l", "o"]

    def lease(app_id: str, index: int, granted_s: float, ended_s: float | None) -> LeaseInterval:
        gpu = Gpu("n1", index)
        return LeaseInterval(0, gpu, Lease((gpu,), app_id, "g", granted_s, 99.0), granted_s, ended_s=ended_s)

    before = [lease("l", i, 0.0, 30.0) for i in range(2)] + [lease("l", i, 60.0, 90.0) for i in range(2)]
    assert not advice.report([*before, lease("s", 0, 30.0, None)])[0]["came_true"], "one GPU of two"
    assert not advice.report([*before, *(lease("s", i, 10.0, None) for i in range(2))])[0]["came_true"], "earlier"
    assert advice.report([*before, *(lease("s", i, 30.0, None) for i in range(2))])[0]["came_true"]
    one = [*before, lease("s", 0, 30.0, None)]
    assert advice.report([*one, lease("s", 7, 30.0, None)])[0]["came_true"], "with one that was free already"
    assert not advice.report([*one, lease("s", 7, 31.0, None)])[0]["came_true"], "that one came later"


def test_the_cells_of_demo_all_are_on_its_machines_and_of_one_type_each() -> None:
    spec = load_topology_spec(together.TOPOLOGY)
    file = parse(together.CELLS.read_text(), CellsFile, together.CELLS.name)
    layout(file, name=together.CELLS.name)
    hosts = {host: cell.type for cell in file.physical_cells for host in cell.hosts}
    assert set(hosts) == {m.host for m in spec.machines}
    assert {(hosts[m.host], m.type) for m in spec.machines} == {("slow", "slow"), ("fast", "fast"), ("small", "fast")}
    assert {vc: cells.policy for vc, cells in file.virtual_clusters.items()} == together.POLICIES
    assert hosts[together.PROD_HOST] == "small"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"auctions": [{"cnn": {"slow"}, "rnn": {"fast"}}]}, ["the first auction", "only 0 of 1"]),
        ({"fast": 0.9}, ["less than 50%"]),
        ({"recalled": 0}, ["taken back"]),
        ({"policy": "themis"}, ["rounds by other policies"]),
        ({"why": ""}, ["equal sharing"]),
    ],
)
def test_what_demo_all_finds_missing(tmp_path: Path, change: dict[str, Any], said: list[str]) -> None:
    class Seen(together.TogetherDemo):
        def receipts(self, vc: str) -> list[dict[str, Any]]:
            policy = change.get("policy", together.POLICIES[vc])
            return [{"policy": policy, "why": {"app": change.get("why", "equal sharing would end it at 12:00")}}]

        def recalled(self) -> int:
            return int(change.get("recalled", 2))

    seen = Seen(tmp_path, tmp_path / "report.json", (), cluster={"env": {}, "rm_web": ""})
    held = {"transformer": {"fast": change.get("fast", 1.9), "slow": 0.0}, "lstm": {"fast": 1.0, "slow": 2.0}}
    found = together.missed(seen, change.get("auctions", [{"cnn": {"fast"}, "rnn": {"slow"}}]), held)
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


@pytest.mark.parametrize(
    ("said", "slower"),
    [
        ("some avg10=0.00 avg60=9.00 avg300=1.00 total=5\n", 1.0),
        ("some avg10=50.00 avg60=0.00 total=5\n", 2.0),
        ("some avg10=99.00 avg60=0.00 total=5\n", 4.0),
        ("", 4.0),
    ],
)
def test_a_rig_asks_how_long_things_have_waited_for_a_core(tmp_path: Path, said: str, slower: float) -> None:
    (tmp_path / "cpu").write_text(said)
    assert slowness(tmp_path / "cpu") == pytest.approx(slower)
    assert slowness(tmp_path / "none") == 4.0
