"""The pure parts of chaos: plans by seed, the proxy, the comparison of losses."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pycontrol.audit.evidence import ContainerInterval
from pycontrol.model.topology import Gpu
from submarine_patch.cli import check
from submarine_patch.cli.options import parse_run
from tests.chaos import logs, work
from tests.chaos.__main__ import STEPS, wanted
from tests.chaos.faults import Begun
from tests.chaos.links import PAIRS, UNDISTURBED, between, set_properties
from tests.chaos.losses import Losses
from tests.chaos.plan import CALM_AFTER, DOWN_S, KINDS, LINKS, WRONG_CLOCK_S, draw
from tests.chaos.proxy import Proxy
from tests.chaos.report import app_rows, fault_rows, refusal, table
from tests.chaos.watch import Growth, Size, Use, Watch, clashes, outlived, use_of
from tests.cluster.rig import options


def test_a_seed_has_one_plan_and_other_seeds_have_others() -> None:
    assert draw(7, 30) == draw(7, 30)
    assert draw(7, 30).faults != draw(8, 30).faults
    assert len({(p.cells, p.kerberos) for p in (draw(seed, 30) for seed in (1, 2, 3, 6))}) == 4


def test_faults_of_all_kinds_begin_in_order_and_leave_time_to_recover() -> None:
    plan = draw(3, 120)
    times = [f.at_s for f in plan.faults]
    assert times == sorted(times)
    assert max(times) < 120 * 60 * CALM_AFTER
    assert {f.kind for f in plan.faults} == set(KINDS)
    assert min(f.for_s for f in plan.faults if f.kind == "clock") >= WRONG_CLOCK_S[0] > DOWN_S[1]
    assert [a.scheduler for a in plan.apps].count("hyperband") == 2


def test_the_command_line_takes_every_planned_app(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("parameters:\n  learning-rate: {type: float, min: 0.003, max: 0.3, log: true}\n")
    for app in draw(3, 120).apps:
        words = options(app.name, app.seconds, *wanted(app, space), queue=app.queue, steps=STEPS)
        check(parse_run(words))


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that echoes its input."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1024):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    made = Proxy(("127.0.0.1", echo))
    made.start()
    yield made
    made.stop()


def dial(proxy: Proxy, timeout_s: float = 5.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout_s)


def says_again(connection: socket.socket, text: bytes) -> bool:
    """Whether the echo arrives; False if the connection is broken, TimeoutError if nothing comes."""
    try:
        connection.sendall(text)
        return connection.recv(1024) == text
    except TimeoutError:
        raise
    except OSError:
        return False


def test_a_proxy_forwards_data(proxy: Proxy) -> None:
    with dial(proxy) as connection:
        assert says_again(connection, b"hello")
        assert proxy.connections == 1


def test_a_cut_breaks_old_and_new_connections_until_it_is_open_again(proxy: Proxy) -> None:
    with dial(proxy) as connection:
        assert says_again(connection, b"hello")
        proxy.cut()
        assert not says_again(connection, b"hello")
    with dial(proxy) as connection:
        assert not says_again(connection, b"hello")
    proxy.open()
    with dial(proxy) as connection:
        assert says_again(connection, b"hello")


def test_stalled_data_arrives_later_and_is_not_lost(proxy: Proxy) -> None:
    with dial(proxy, 0.3) as connection:
        assert says_again(connection, b"hello")
        proxy.stall()
        with pytest.raises(TimeoutError):
            says_again(connection, b"later")
        proxy.open()
        connection.settimeout(5.0)
        assert connection.recv(1024) == b"later"


def test_a_delayed_proxy_delays_data(proxy: Proxy) -> None:
    proxy.delay(0.2)
    with dial(proxy) as connection:
        begun = time.monotonic()
        assert says_again(connection, b"hello")
        assert time.monotonic() - begun >= 0.4


def test_lossy_connections_break(proxy: Proxy) -> None:
    with dial(proxy, 30.0) as connection:
        assert says_again(connection, b"hello")
        proxy.lossy()
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1024) == b""


def test_a_proxy_without_a_server_breaks_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    alone = Proxy(("127.0.0.1", port))
    alone.start()
    try:
        with dial(alone) as connection:
            assert not says_again(connection, b"hello")
    finally:
        alone.stop()


LOG = """INFO:tensorflow:Saved checkpoint for 0 into hdfs://h:1/user/u/submarine/jobs/{}-vision-1/staging/checkpoint_path/application_1_0001/job001/ckpt-0-1a
INFO:tensorflow:loss = {}, step = 25 (1.203 sec), accuracy = 0.9375, 1.2025 sec/step, paced
INFO:tensorflow:Saving dict for global step 25: accuracy = 0.905556, loss = {}, paced
"""


def test_losses_are_compared_at_the_same_step_of_the_same_job() -> None:
    losses = Losses()
    losses.note(LOG.format("calm", 0.5, 0.6))
    assert losses.compared == 0
    losses.note(LOG.format("chaos", 0.50001, 0.6))
    assert (losses.compared, losses.different()) == (2, [])
    losses.note(LOG.format("chaos", 0.5, 0.9).replace("step = 25", "step = 26").replace("job001", "job002"))
    assert (losses.compared, losses.different()) == (2, [])
    losses.note(LOG.format("chaos", 0.55, 0.6))
    assert losses.different() == ["vision job001 at step 25: the loss of training differs by 10.00%"]


def test_a_worker_that_goes_on_with_another_job_tells_the_losses_of_both() -> None:
    other = LOG.format("calm", 0.7, 0.8).replace("job001", "job002")
    losses = Losses()
    losses.note(LOG.format("calm", 0.5, 0.6) + "isonomy worker: goes on as job002/1/0\n" + other)
    losses.note(other.replace("calm", "chaos"))
    assert (losses.compared, losses.different()) == (2, [])


def test_an_app_whose_result_is_lost_is_reported() -> None:
    losses = Losses()
    losses.note(LOG.format("calm", 0.5, 0.6))
    losses.note(LOG.format("chaos", 0.5, 0.6).replace("vision-1", "vision-2"))
    losses.note(
        LOG.format("chaos", 0.5, 0.6).replace("vision-1", "vision-3").replace("global step 25", "global step 20")
    )
    assert losses.unfinished(["chaos-vision-2"]) == []
    late, none = losses.unfinished(["chaos-vision-3", "chaos-plain-2"])
    assert late == "chaos-vision-3: no job was evaluated at step 25, where the undisturbed one's was"
    assert none.startswith("chaos-plain-2: no job was evaluated")


WORKER = """INFO:tensorflow:Saved checkpoint for {0} into hdfs://h/u/submarine/jobs/chaos-vision-1/staging/checkpoint_path/application_1_0001/{1}/ckpt-{0}-1a
INFO:tensorflow:Restored checkpoint for {0} from hdfs://h/u/submarine/jobs/chaos-vision-1/staging/checkpoint_path/application_1_0001/{1}/ckpt-{0}-1a
INFO:tensorflow:loss = 0.5, step = {2} (1.203 sec), accuracy = 0.9375, 0.5000 sec/step, paced
"""


def test_steps_that_a_later_launch_trains_again_are_lost_work() -> None:
    told = [(0, "job000", 28), (20, "job000", 50), (0, "job001", 50)]
    launches = [launch for log in told for launch in logs.read(WORKER.format(*log))]
    assert work.summed(launches) == work.AppWork(launches=3, restarts=1, lost_steps=8, lost_s=4.0)
    assert logs.read("no worker's log") == []


def test_attempts_and_launches_are_counted_by_application(tmp_path: Path) -> None:
    for n, log in enumerate(("an AM's", WORKER.format(0, "job000", 20), WORKER.format(20, "job000", 50)), 1):
        folder = tmp_path / "nodemanager-0" / "log" / "application_17_0001" / f"container_e02_17_0001_02_{n:06d}"
        folder.mkdir(parents=True)
        (folder / "stderr").write_text(log)
    assert work.read(tmp_path) == {"application_17_0001": work.AppWork(attempts=2, launches=2, restarts=1)}


CLUSTER = {
    "ports": dict.fromkeys(
        [*(p for of in PAIRS.values() for p in of), *UNDISTURBED, "nm", "nm_localizer", "nm_web"], 7
    ),
    "roles": {"resourcemanager": {"host": "127.0.0.1"}, "nodemanager-0": {"host": "127.0.10.1"}},
}


def test_each_daemon_is_reached_through_a_proxy_at_its_known_address() -> None:
    links, rest = between(CLUSTER)
    assert set(links) | {"agents", "bridge", "webhdfs"} == set(LINKS)
    (proxy,) = links["am-nm"][0].proxies
    assert (proxy.host, proxy.upstream) == ("127.0.10.1", ("127.1.10.1", 7))
    assert len(rest) == len(UNDISTURBED) + 2


def test_a_property_that_is_set_again_comes_last(tmp_path: Path) -> None:
    file = tmp_path / "site.xml"
    file.write_text("<configuration>\n<property><name>a</name><value>1</value></property>\n</configuration>\n")
    set_properties(file, {"a": "2"})
    assert [e.text for e in ElementTree.parse(file).iter("value")] == ["1", "2"]


def test_a_report_lists_faults_and_apps_and_ends_with_its_verdict() -> None:
    app = {
        "name": "chaos-plain-1",
        "id": "application_1_0001",
        "state": "FINISHED",
        "finalStatus": "SUCCEEDED",
        "startedTime": 1000,
        "elapsedTime": 61000,
    }
    told = {
        "seed": 3,
        "minutes": 30,
        "world": draw(3, 30).world,
        "commit": "abc",
        "control_plane_starts": 2,
        "losses_compared": 7,
        "largest_difference": 0.0,
        "audit": {"violations": [], "checked": {"leases": 4}},
        "problems": [],
        "submissions_refused": 1,
        "clocks_behind": 2,
        "looks": 9,
        "half_written": [],
        "faults_planned": 1,
        "sizes": {"control plane": {"calm": {"mib": 150.5, "threads": 20, "files": 30}, "at_end": None}},
        "faults": fault_rows([Begun(5.0, "kill am", 3.0, "kill -9 am [7]")]),
        "apps": app_rows([app], {"application_1_0001": work.AppWork(2, 3, 1, 8, 4.0)}),
    }
    folder = Path("/build/cluster")
    text = table(told, folder)
    assert "kill -9 am [7]" in text
    assert re.search(r"chaos-plain-1 +SUCCEEDED +61 +2 +3 +1 +8 +4.0", text)
    assert re.search(r"control plane +calm +150.5 +20 +30", text)
    assert "to play it again" not in text
    assert text.splitlines()[-1] == "clean: seed 3, 30 minutes, with cells, with Kerberos, commit abc"
    failed = table({**told, "problems": ["leases are left"]}, folder).splitlines()
    assert failed[-4:-2] == ["PROBLEM leases are left", "to play it again: make chaos SEED=3 MINUTES=30"]
    assert failed[-1] == "FAILED: seed 3, 30 minutes, with cells, with Kerberos, commit abc"


def test_a_refused_submission_is_reported_with_the_clients_line() -> None:
    said = AssertionError("log4j: no appenders\nsubmarine: the queue is stopped\n\tat a.B.c(B.java:1)\nassert 1 == 0")
    assert refusal(said) == "submarine: the queue is stopped"
    assert refusal(subprocess.TimeoutExpired(["submarine"], 120)) == "the client said nothing for 120 s"


ENVIRONMENT = b"A=b\0CONTAINER_ID=%s\0NM_HOST=127.0.10.1\0CUDA_VISIBLE_DEVICES=%s\0"


def test_a_gpu_in_processes_of_two_containers_is_a_clash() -> None:
    use = use_of(7, ENVIRONMENT % (b"container_1_0001_01_000002", b"0,1"))
    assert use == Use(7, "container_1_0001_01_000002", (Gpu("127.0.10.1", 0), Gpu("127.0.10.1", 1)))
    assert use_of(8, b"CONTAINER_ID=container_1_0001_01_000001\0NM_HOST=127.0.10.1\0") is None
    child, other = Use(9, use.container, use.gpus), Use(10, "container_1_0002_01_000002", use.gpus[1:])
    assert clashes([use, child]) == []
    assert clashes([use, child, other]) == [(Gpu("127.0.10.1", 1), use, other)]


def test_a_process_that_outlives_its_container_is_reported() -> None:
    ended = ContainerInterval("c1", "h", (0,), "", 100.0, 110.0, "NodeManager")
    lost = ContainerInterval("c2", "h", (1,), "", 100.0, 110.0, "ResourceManager")
    assert outlived({"c1": 112.0, "c2": 190.0}, {"c1": ended, "c2": lost}) == []
    assert outlived({"c1": 140.0}, {"c1": ended}) == ["c1: its processes were seen 30.0 s after its recorded end"]


def test_a_program_that_grows_is_reported() -> None:
    assert Growth(calm=Size(150, 9, 9), disturbed=Size(290, 9, 9)).flat
    assert Growth(calm=Size(20, 9, 9), at_end=Size(80, 9, 9)).flat
    assert not Growth(calm=Size(150, 9, 9), disturbed=Size(301, 9, 9)).flat


def test_the_watch_detects_real_processes_that_share_a_gpu() -> None:
    def started(container: str) -> subprocess.Popen[bytes]:
        env = {"CONTAINER_ID": container, "NM_HOST": "h", "CUDA_VISIBLE_DEVICES": "3"}
        program = subprocess.Popen(["/bin/cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert program.stdin
        assert program.stdout
        program.stdin.write(b"\n")
        program.stdout.read(1)  # an answer: just after exec the kernel does not show its environment yet
        return program

    programs = [started("container_1_0001_01_000002"), started("container_1_0002_01_000002")]
    try:
        pids = [p.pid for p in programs]
        watch = Watch(lambda: pids, lambda: {"cat": pids})
        watch.look()
        watch.phase = "disturbed"
        watch.look()
        (clash,) = watch.problems({})
        assert clash.startswith("GPU h:3 was in container_1_0001_01_000002")
        sizes = watch.sizes()["cat"]
        assert sizes["at_end"] is None
        assert sizes["calm"] is not None
        assert sizes["disturbed"] is not None
    finally:
        for program in programs:
            program.kill()
            program.wait()
