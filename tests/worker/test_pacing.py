"""Steps on virtual GPUs take serial_iter_s x S / n."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from submarine_patch.worker.pacing import Pacer, Pacing, PacingError


def test_step_time() -> None:
    pacing = Pacing.parse({"ISONOMY_PACING": '{"serial_iter_s": 1.2, "slowdown": 1.1, "gpus": 4}'})
    assert pacing is not None
    assert pacing.step_s == pytest.approx(0.33)
    assert Pacing.parse({}) is None


def test_a_faster_virtual_type_speeds_up_what_is_gpu_bound() -> None:
    env = {
        "ISONOMY_PACING": '{"serial_iter_s": 1.2, "gpus": 2, "gpu_bound": 0.75}',
        "ISONOMY_VIRTUAL_GPU_TYPE": "virtual-b",
        "ISONOMY_VIRTUAL_GPU_SPEED": "3",
    }
    pacing = Pacing.parse(env)
    assert pacing is not None
    assert pacing.step_s == pytest.approx(0.3)
    assert str(pacing) == "0.3000 sec/step as 2 GPUs of type virtual-b (speed 3), of which 75% is GPU-bound"
    with pytest.raises(PacingError, match="ISONOMY_VIRTUAL_GPU_SPEED: '0' is not a number above 0"):
        Pacing.parse({**env, "ISONOMY_VIRTUAL_GPU_SPEED": "0"})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"serial_iter_s": 1, "gpus": 0}',
        '{"serial_iter_s": -1, "gpus": 1}',
        '{"serial_iter_s": 1, "gpus": 1, "slowdown": 0.5}',
        '{"serial_iter_s": NaN, "gpus": 1}',
        '{"serial_iter_s": 1, "gpus": 1, "gpu_bound": 1.1}',
    ],
)
def test_malformed(text: str) -> None:
    with pytest.raises(PacingError, match="ISONOMY_PACING"):
        Pacing.parse({"ISONOMY_PACING": text})


class _World:
    """A clock whose waits last a little longer than requested."""

    def __init__(self, over_s: float) -> None:
        self.now_s, self.over_s = 0.0, over_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds + self.over_s


@given(
    st.lists(st.floats(0, 0.9), min_size=1, max_size=50),
    st.floats(0.01, 10.0),
    st.floats(0, 0.4),
)
def test_the_rate_is_as_configured(work_shares: list[float], step_s: float, over_share: float) -> None:
    world = _World(over_share * step_s * 0.1)
    pacer = Pacer(Pacing(step_s, 1.0, 1), world.wait, lambda: world.now_s)
    began_s = world.now_s
    for share in work_shares:
        pacer.begin()
        world.now_s += share * step_s
        pacer.end()
    took_s = world.now_s - began_s
    assert took_s >= len(work_shares) * step_s * (1 - 1e-9)
    assert took_s <= len(work_shares) * step_s + world.over_s + step_s * 1e-6


def test_a_long_delay_is_not_made_up_for() -> None:
    world = _World(0.0)
    pacer = Pacer(Pacing(1.0, 1.0, 1), world.wait, lambda: world.now_s)
    pacer.begin()
    pacer.end()
    world.now_s += 5.0  # for example a checkpoint
    for _ in range(3):
        pacer.begin()
        pacer.end()
    assert world.now_s == pytest.approx(9.0)


def test_slow_work_is_not_paced() -> None:
    world = _World(0.0)
    pacer = Pacer(Pacing(1.0, 1.0, 1), world.wait, lambda: world.now_s)
    for _ in range(3):
        pacer.begin()
        world.now_s += 2.0
        pacer.end()
    assert world.now_s == pytest.approx(6.0)
