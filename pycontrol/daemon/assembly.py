"""Wires the parts that every control plane has, whether run by `isonomy serve` or simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.arbiter.state import RECEIPTS_KEPT
from pycontrol.bridge.endpoint import BridgeEndpoint
from pycontrol.model.events import Event, ProgressReported
from pycontrol.rpc.admission import Owner
from pycontrol.rpc.agent_server import AgentServer, TlsFiles
from pycontrol.rpc.service import TokenSource
from pycontrol.rpc.tokens import Tokens
from pycontrol.runtime.driver import Driver
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.web.feed import Feed
from pycontrol.web.router import Router

JOBS_FILE = "jobs.jsonl"
"""Beside the journal: the jobs of ended apps."""
MakeDriver = Callable[[Arbiter, Feed, AgentServer, BridgeEndpoint], Driver]


@dataclass(frozen=True)
class Core:
    """The wired parts, not started."""

    agents: AgentServer
    endpoint: BridgeEndpoint
    feed: Feed
    driver: Driver
    router: Router


def owner_of(arbiter: Arbiter, app_id: str) -> Owner | None:
    """The owner of a live application, while YARN is away from the journal; None if unknown. Any thread."""
    durable, app = arbiter.durable, arbiter.cluster.apps.get(app_id)
    if app is not None:
        return Owner(app.user, app.submitted_s)
    record = None if arbiter.cluster.ready else durable.apps.get(app_id)
    if record is None or (record.finished_s is not None and app_id not in durable.leases.by_app):
        return None
    return Owner(record.user, record.submitted_s)


def assemble(
    arbiter: Arbiter,
    durable: Durable,
    journal: SqliteJournal,
    tokens: Tokens,
    make_driver: MakeDriver,
    make_router: Callable[[Driver, Feed], Router],
    from_cluster: Callable[[Event], None],
    *,
    listen: tuple[str, int],
    tls: TlsFiles | None = None,
    past: Iterable[tuple[float, Fact]] = (),
    serving: Callable[[], bool] = lambda: True,
    failed: Callable[[str, BaseException], None] = lambda what, e: None,
    hdfs_tokens: TokenSource | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Core:
    """Make the parts of a control plane and connect them; starts nothing.

    `listen`: host and port of the Agents' server.
    `past`: the facts that the feed starts with. `from_cluster` receives the plugin's events and submits them to the
    driver.
    """
    arbiter.receipts.extend(reversed(journal.rounds(RECEIPTS_KEPT)))

    def from_agents(event: Event) -> None:
        driver.submit(event)
        if isinstance(event, ProgressReported):
            feed.trends.progressed(event.app_id, event.jobs)

    agents = AgentServer(
        *listen,
        tls,
        tokens,
        from_agents,
        lambda: arbiter.cluster.machines.known,
        lambda app_id: owner_of(arbiter, app_id),
        lambda done: driver.after(done),
        serving=serving,
        failed=lambda e: failed("the Agents' server ended", e),
        hdfs_tokens=hdfs_tokens,
    )
    endpoint = BridgeEndpoint(
        from_cluster, lambda *query: router.handle(*query), lambda: driver.settle(), clock_s=monotonic_s
    )
    feed = Feed(journal, durable=durable, past=past, jobs_file=journal.path.with_name(JOBS_FILE))
    driver = make_driver(arbiter, feed, agents, endpoint)
    router = make_router(driver, feed)
    return Core(agents, endpoint, feed, driver, router)
