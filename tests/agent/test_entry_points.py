"""App schedulers of other distributions: the one of docs/extending.md, installed as a package would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from submarine_patch.agent import schedulers
from submarine_patch.agent.schedulers import SchedulerError
from submarine_patch.cli.checks import check_group
from submarine_patch.cli.errors import UsageError
from submarine_patch.lab.conformance import SPACE, trained
from tests.agent.world import hyperband
from tests.documented import check_documented_suite, installed_package


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The document's code and entry point, on the path; a missing one, and one with the name of a built-in one."""
    more = "acme.gone = acme.nowhere:Gone\nasha = acme.waves:Waves\n"
    forget = schedulers.others.cache_clear
    with installed_package(tmp_path, monkeypatch, "acme/waves.py", "isonomy.app_schedulers", more, forget):
        yield


@pytest.mark.usefixtures("_installed")
def test_an_installed_package_brings_its_app_scheduler() -> None:
    assert "acme.waves" in schedulers.names()
    trainer = trained(hyperband(app_scheduler="acme.waves", search_space=SPACE, jobs=9, max_iterations=40))
    assert len(trainer.steps) == 9
    assert trainer.scheduler.best() in trainer.steps


@pytest.mark.usefixtures("_installed")
def test_the_documents_app_scheduler_passes_the_conformance_suite(tmp_path: Path) -> None:
    check_documented_suite(tmp_path, "test_waves.py")


@pytest.mark.usefixtures("_installed")
def test_submitting_accepts_its_name_and_any_key_of_a_search(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("parameters:\n  rate: {type: float, min: 0.1, max: 0.2}\n")
    conf = {"app_scheduler": "acme.waves", "search_space": str(space), "max_iterations": "9", "eta": "3", "jobs": "4"}
    check_group(conf)
    with pytest.raises(UsageError, match=r"isonomy\.search_space"):
        check_group({"app_scheduler": "acme.waves", "max_iterations": "9"})


@pytest.mark.usefixtures("_installed")
def test_an_app_scheduler_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(SchedulerError, match=r"app_scheduler=acme\.gone: acme\.nowhere:Gone cannot be loaded"):
        schedulers.create(hyperband(app_scheduler="acme.gone"))


@pytest.mark.usefixtures("_installed")
def test_an_entry_point_cannot_replace_a_built_in_app_scheduler() -> None:
    spec = hyperband(app_scheduler="asha", search_space=SPACE)
    assert type(schedulers.create(spec)).__module__ == "submarine_patch.agent.schedulers.asha"


def test_an_app_scheduler_that_is_not_installed_is_refused_with_the_known_names() -> None:
    with pytest.raises(SchedulerError, match="must be one of single, hyperband"):
        schedulers.create(hyperband(app_scheduler="acme.waves"))
