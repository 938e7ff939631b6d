"""Work on a thread of its own comes again, whatever it raised."""

import queue
import threading

from pycontrol.daemon.periodic import Periodic


def test_work_comes_again_after_a_failure_and_not_after_the_end() -> None:
    calls = queue.Queue[int]()

    def act() -> None:
        calls.put(1)
        raise ValueError("not now")

    work = Periodic("isonomy-test", 0.01, act, "it failed")
    work.start()
    assert [calls.get(timeout=30) for _ in range(3)] == [1, 1, 1]
    thread = next(t for t in threading.enumerate() if t.name == "isonomy-test")
    work.stop()
    thread.join(30)
    assert not thread.is_alive()
