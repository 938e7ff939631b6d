"""A running world for the views: an Arbiter with apps, behind a driver that runs calls immediately."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import Fact, LeaseStarted
from pycontrol.model.cluster import Container
from pycontrol.model.events import Event
from pycontrol.policies.policy_port import Policy
from pycontrol.simulation.questions import Questions
from pycontrol.simulation.scene import picture
from pycontrol.web.feed import Feed
from pycontrol.web.router import Router
from tests.arbiter.world import World

T = TypeVar("T")
EARLY, LATE, SHELL = "application_1_0001", "application_1_0002", "application_1_0003"


class Kept:
    """A journal in memory."""

    def __init__(self) -> None:
        self.facts: list[tuple[int, float, Fact]] = []

    def append(self, facts: Any, now_s: float) -> None:
        self.facts += [(len(self.facts) + i, now_s, f) for i, f in enumerate(facts)]


def yarn_name(container: Container) -> str:
    """A container's id as YARN writes it."""
    return f"container_{container.app_id.removeprefix('application_')}_01_{int(container.container_id[1:]):06d}"


class SceneWorld(World):
    """A world whose facts also go to a feed, and whose nodes keep evidence."""

    feed: Feed | None = None

    def __init__(self, policy: Policy | str, **more: Any) -> None:
        self.evidence: list[dict[str, Any]] = []
        self.yarn_names: dict[str, str] = {}
        super().__init__(policy, **more)

    def container_runs(self, container: Container) -> None:
        if container.container_id in self.containers:
            self.note("start", container)
        super().container_runs(container)

    def container_ends(self, container_id: str) -> None:
        if container_id in self.yarn_names and container_id in self.containers:
            self.note("end", self.containers[container_id])
        super().container_ends(container_id)

    def note(self, event: str, container: Container) -> None:
        self.yarn_names[container.container_id] = yarn_name(container)
        self.evidence.append(
            {
                "event": event,
                "container": yarn_name(container),
                "node": container.gpus[0].host,
                "gpu_ids": [g.index for g in container.gpus],
                "lease": container.lease_id,
                "time_ms": int(self.now * 1000),
            }
        )

    def submit(self, event: Event) -> None:
        before = len(self.journal)
        super().submit(event)
        if self.feed is not None:
            self.feed.append(self.journal[before:], self.now)


class Scene:
    """Two apps with Agents that compete, one app without; `router` answers about them."""

    def __init__(self, run_s: float = 100.0, policy: Policy | None = None) -> None:
        self.world = SceneWorld(policy or "themis", f=0.0)
        self.kept = Kept()
        self.feed = self.world.feed = Feed(self.kept, first_seq=1000)
        self.issued: list[tuple[str, str]] = []
        self.questions = Questions({}, slower=10.0)
        self.router = Router(
            self,
            issue=self._issue,
            arbiter_address="host:26501",
            ca="",
            token_ttl_s=60.0,
            feed=self.feed,
            picture=picture,
            why_not=self.questions.answer,
        )
        self.world.add_app(EARLY, 4, 3, 4000)
        self.world.run(5)
        self.world.add_app(LATE, 4, 3, 4000)
        self.world.add_foreign(SHELL, 2, 1)
        self.world.run(run_s)

    def _issue(self, app_id: str, user: str) -> str:
        self.issued.append((app_id, user))
        return f"token of {app_id}"

    # ---- the driver

    def submit(self, event: Event) -> None:
        self.world.submit(event)

    def call(self, fn: Callable[[Arbiter, float], T], timeout_s: float = 5.0) -> T:
        return fn(self.world.arbiter, self.world.now)

    # ---- what tests do

    def yarn_facts(self) -> list[tuple[int, float, Fact]]:
        """The journal, with containers named as YARN names them."""
        names = self.world.yarn_names
        return [
            (seq, time_s, replace(fact, container_id=names[fact.container_id]))
            if isinstance(fact, LeaseStarted)
            else (seq, time_s, fact)
            for seq, time_s, fact in self.kept.facts
        ]

    def get(self, path: str, user: str = "u", **params: str) -> dict[str, Any]:
        """A view that must be served."""
        status, answer = self.router.handle("GET", path, params, user, False)
        assert status == 200, answer
        return answer

    def error(self, method: str, path: str, user: str = "u", admin: bool = False, **params: str) -> tuple[int, str]:
        """A query that must be refused."""
        status, answer = self.router.handle(method, path, params, user, admin)
        assert status != 200
        return status, answer["error"]
