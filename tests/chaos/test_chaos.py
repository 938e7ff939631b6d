"""The pure parts of chaos: plans by seed, the proxy, the comparison of losses."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.losses import Losses
from tests.chaos.plan import CALM_AFTER, KINDS, draw
from tests.chaos.proxy import Proxy


def test_a_seed_has_one_plan_and_other_seeds_have_others() -> None:
    assert draw(7, 30) == draw(7, 30)
    assert draw(7, 30).faults != draw(8, 30).faults
    assert {draw(seed, 30).cells for seed in (1, 2)} == {True, False}


def test_faults_of_all_kinds_begin_in_order_and_leave_time_to_recover() -> None:
    plan = draw(3, 120)
    times = [f.at_s for f in plan.faults]
    assert times == sorted(times)
    assert max(times) < 120 * 60 * CALM_AFTER
    assert {f.kind for f in plan.faults} == set(KINDS)
    assert [a.scheduler for a in plan.apps].count("hyperband") == 2


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says again what it hears."""
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
    """False where the connection is broken; TimeoutError where nothing comes."""
    try:
        connection.sendall(text)
        return connection.recv(1024) == text
    except TimeoutError:
        raise
    except OSError:
        return False


def test_a_proxy_passes_on_what_comes(proxy: Proxy) -> None:
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


def test_what_stalls_comes_later_and_is_not_lost(proxy: Proxy) -> None:
    with dial(proxy, 0.3) as connection:
        assert says_again(connection, b"hello")
        proxy.stall()
        with pytest.raises(TimeoutError):
            says_again(connection, b"later")
        proxy.open()
        connection.settimeout(5.0)
        assert connection.recv(1024) == b"later"


def test_a_delay_is_a_delay(proxy: Proxy) -> None:
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


def test_nobody_behind_the_proxy_is_a_broken_connection() -> None:
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
