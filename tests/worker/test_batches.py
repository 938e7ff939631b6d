"""Global batches do not depend on the number of workers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from submarine_patch.worker.batches import Batches
from submarine_patch.worker.rank import ClusterError, Rank


@given(st.integers(1, 4), st.integers(1, 2), st.integers(8, 16), st.integers(0, 40), st.integers(0, 3))
def test_workers_share_the_batch(workers: int, local: int, size: int, step: int, seed: int) -> None:
    x = np.arange(100)
    replicas = workers * local
    whole = Batches((x, -x), size - size % replicas, seed, 1, 0, 1)
    parts = [Batches((x, -x), size - size % replicas, seed, workers, w, replicas) for w in range(workers)]
    assert np.concatenate([p[step][0] for p in parts]).tolist() == whole[step][0].tolist()
    assert all((p[step][0] == -p[step][1]).all() for p in parts)
    assert len({len(p[step][0]) for p in parts}) == 1


def test_an_epoch_has_every_example_once() -> None:
    batches = Batches((np.arange(64),), 16, 0, 1, 0, 1)
    first = [int(i) for step in range(4) for i in batches[step][0]]
    second = [int(i) for step in range(4, 8) for i in batches[step][0]]
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second


def test_a_batch_too_small_to_share() -> None:
    with pytest.raises(ValueError, match="a batch of 2 cannot be shared by 4 replicas"):
        Batches((np.arange(64),), 2, 0, 4, 0, 4)


def test_place_in_the_cluster() -> None:
    assert Rank.parse("") == Rank(1, 0)
    two = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
    assert Rank.parse(two) == Rank(2, 1)
    chief = '{"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"]}, "task": {"type": "%s", "index": 0}}'
    assert Rank.parse(chief % "chief") == Rank(3, 0)
    assert Rank.parse(chief % "worker") == Rank(3, 1)
    with pytest.raises(ClusterError, match="TF_CONFIG"):
        Rank.parse("{}")
