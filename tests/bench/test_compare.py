"""Two runs of the benchmarks compared: ratios that moved, parts that are missing."""

from tests.bench.compare import compared


def run(ratio: float, ms: float = 1.0, **more: object) -> dict[str, object]:
    return {"machine": {"cores": 2}, "journal": {"ratio_to_fsync": ratio, "median_ms": ms}, **more}


def test_figures_that_moved_beyond_the_noise_are_named() -> None:
    assert compared(run(2.0), run(2.1)) == []
    assert compared(run(2.0), run(3.0, 9.0)) == ["journal / ratio_to_fsync: 2 -> 3 (+50 %)"]
    assert len(compared(run(2.0), run(3.0, 9.0), everything=True)) == 2


def test_a_part_that_could_not_be_measured_is_named() -> None:
    lines = compared(run(2.0, bridge={"median_ms": 1.0}), run(2.0, bridge={"failed": "no jar"}))
    assert lines == ["bridge: not measured in the new run (no jar)"]
    assert compared(run(2.0, cells={"ratio": 1.0}), run(2.0)) == ["cells: not measured in the new run (left out)"]
