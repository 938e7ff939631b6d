"""The control plane as one process: makes its parts from isonomy.yaml, starts and stops them."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import structlog

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.validate import Inconsistent
from pycontrol.arbiter.views.settings import Settings
from pycontrol.auction.winners import engine_name
from pycontrol.audit.accounting import last_year
from pycontrol.bridge.server import BridgeServer
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.layout import Layout
from pycontrol.config import Config, ConfigError, load_topology_spec, mismatches, parse
from pycontrol.config.accounts_section import accounts_of
from pycontrol.daemon.assembly import assemble
from pycontrol.daemon.hdfs_tokens import HdfsTokens
from pycontrol.daemon.periodic import Periodic
from pycontrol.daemon.standby_store import StandbyStore
from pycontrol.daemon.takeover import Superseded, Takeover
from pycontrol.model.events import ClusterSnapshot, Event
from pycontrol.model.topology import Topology
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.themis import Themis
from pycontrol.queries import shadow
from pycontrol.queries.metrics import Metrics
from pycontrol.queries.trends import SAMPLE_S
from pycontrol.rpc.tokens import Tokens
from pycontrol.runtime.clock import STEP_S
from pycontrol.runtime.driver import Driver, Overloaded, SteadyClock
from pycontrol.runtime.journal import JournalError, SqliteJournal
from pycontrol.runtime.journal_keeper import JournalKeeper
from pycontrol.simulation.forecaster import Forecaster
from pycontrol.simulation.questions import Questions
from pycontrol.simulation.scene import own_policies, picture
from pycontrol.web.metrics_server import MetricsServer
from pycontrol.web.notify import Notifier
from pycontrol.web.router import Router

TOKEN_KEY_FILE, METRICS_TOKEN_FILE = "tokens.key", "metrics.token"
ESTIMATES_FILE = "estimates.json"
"""What the errors of past estimates taught."""
HOUSEKEEPING_S, LOOK_S = 2.0, 5.0
COLLECT_S = 3600.0
"""Time between two collections of old objects' cycles, which hold all threads."""
FACTS_READ = 50_000
"""The journal's newest facts that a start reads, for the page's history."""
DAY_S = 86400.0
log = structlog.get_logger("isonomy.serve")


def settings_of(config: Config) -> Settings:
    """The Arbiter's settings from isonomy.yaml; most keys, those of two sections too, have their names."""
    given = {**dict(config), **dict(config.deadlines), **dict(config.standin)}
    same = {field.name: given[field.name] for field in fields(Settings) if field.name in given}
    return Settings(
        **{
            **same,
            "standin_revocable": config.standin.revocable,
            "exempt_queues": tuple(config.standin.exempt_queues),
            "accounts": accounts_of(config.accounts),
            "ended_apps_s": config.journal.retention_days * DAY_S,
            "validate": os.environ.get("ISONOMY_VALIDATE") == "1",
        }
    )


def policy_of(config: Config, name: str, own: Mapping[str, Any] | None = None) -> Policy:
    """The policy called `name`, with the file's solve deadline, and the file's options if the file names this policy.

    `own` options override both.
    """
    options = {**(config.policy_options if name == config.policy else {}), **(own or {})}
    if "budget_s" in registry.options(name):
        options.setdefault("budget_s", config.deadlines.solve_s)
    return registry.make(name, **options)


def notice_of(policy: Policy) -> str:
    """One line that names the policy and, if it holds auctions, the engine that solves them; raises ConfigError."""
    if not isinstance(policy, Themis):
        return f"policy {policy.name}"
    try:
        engine = engine_name(policy.engine)
    except ValueError as e:
        raise ConfigError([f"policy_options.engine: {e}"]) from e
    slower = "" if engine == "compiled" or policy.engine else "; slower than the compiled one, which is not built"
    return f"policy {policy.name}, auctions solved by the engine {engine}{slower}"


class ControlPlane:
    """The control plane's process; `start` raises ConfigError if the configuration is wrong."""

    def __init__(self, config: Config, policy: str) -> None:
        self.config = config
        self._policy, self._name = policy_of(config, policy), policy
        self._found: Layout | None = None
        self._cells_text = ""
        """The cells file as it is in force."""
        self._topology: Topology | None = None
        self.notice = notice_of(self._policy)
        self._parts = ExitStack()
        self._stop = threading.Event()
        self.mismatches: list[str] = []
        self._topology_held = False
        """The nodes have matched the topology file, or GPUs are leased: a mismatch is only reported from now on."""
        self._wrong_topology = False
        self._failure = ""
        """The part that failed and why; empty if none did."""
        self._stale = False
        """Another control plane has served since this journal was written."""

    def start(self) -> None:
        """Open the journal and start all parts; on failure nothing stays open."""
        with ExitStack() as parts:
            self._start(parts)
            self._parts = parts.pop_all()

    def _start(self, parts: ExitStack) -> None:
        """Start the parts; the journal is locked first, so that no other process uses the state folder."""
        config = self.config
        spec = load_topology_spec(config.topology) if config.topology else None
        self._topology, self._speeds = (None, {}) if spec is None else (spec.topology(), spec.speeds)
        prices = {} if spec is None else spec.prices
        ca = _ca_of(config)
        self._journal = SqliteJournal(config.journal_file)
        parts.callback(lambda: self._journal.close(_utc() if self._stale else ""))
        clock = SteadyClock(not_before_s=self._journal.until_s)
        if (back_s := clock.now_s() - time.time()) > STEP_S:
            log.warning(
                "this machine's clock is behind the journal: time runs slowly until it has caught up",
                behind_s=round(back_s),
            )
        tokens = Tokens.of_file(config.state_dir / TOKEN_KEY_FILE)
        durable = self._journal.recover()
        for line in self._journal.set_aside:
            log.error("the journal: set aside", file=str(config.journal_file), problem=line)
        keep, cells = config.standby, lambda: self._cells_text
        self._takeover = Takeover(StandbyStore(keep), self._journal, durable.is_empty, cells) if keep else None
        arbiter = self._arbiter(durable)
        options = config.policy_options if self._name == config.policy else {}
        forecaster = Forecaster(lambda: self._router.pictures.newest(), options, config.state_dir / ESTIMATES_FILE)
        questions = Questions(options, lambda: forecaster.latest["apps"])
        self._shadow = self._shadow_rounds()
        core = assemble(
            arbiter,
            durable,
            self._journal,
            tokens,
            lambda arbiter, feed, agents, yarn: Driver(arbiter, feed, agents, yarn, clock, self._kept),
            lambda driver, feed: Router(
                driver,
                issue=lambda app_id, user: tokens.issue(app_id, user, config.token_ttl_s, clock.now_s()),
                arbiter_address=config.agents.advertise or f"{socket.getfqdn()}:{config.agents.port}",
                ca=ca,
                token_ttl_s=config.token_ttl_s,
                feed=feed,
                read_cells=self.read_cells if config.cells else None,
                traders=config.exchange.traders,
                picture=lambda a, now_s: picture(a, now_s, options),
                estimates=lambda: forecaster.latest,
                secure=lambda: self._takeover.secure(self.driver) if self._takeover else "",
                shadow=self._shadow.view,
                why_not=questions.answer,
                usage=lambda by, accounts: last_year(self._journal.path, by, accounts, prices),
            ),
            self._from_cluster,
            listen=(config.agents.host, config.agents.port),
            tls=config.agents.tls,
            past=self._journal.newest(FACTS_READ),
            serving=lambda: keep is None or self._endpoint.connected,
            failed=self._fail,
            hdfs_tokens=HdfsTokens(config.hdfs_tokens).of if config.hdfs_tokens else None,
        )
        self._agents, self._endpoint, self.feed = core.agents, core.endpoint, core.feed
        self.driver, self._router = core.driver, core.router
        self._watch_parts(core.feed.metrics, arbiter)
        parts.callback(questions.stop)
        self._start_parts(parts, forecaster, durable)

    def _kept(self, e: Inconsistent) -> bool:
        """Keep story and journal of a violation; whether the last day saw the same, so that a restart is in vain."""
        kind = hashlib.sha256(re.sub(r"\d+", "", e.problem).encode()).hexdigest()[:8]
        story = self.config.state_dir / f"violation-{kind}.txt"
        if story.exists() and time.time() - story.stat().st_mtime < DAY_S:
            return True
        try:
            os.close(os.open(story, os.O_CREAT | os.O_WRONLY, 0o600))
            story.write_text("\n".join([str(e), "", "All that was last:", *e.whole]), encoding="utf-8")
            self._journal.copy_to(story.with_suffix(".sqlite"))
        except (OSError, JournalError) as error:  # it stops nevertheless
            log.error("not all of a violation could be kept", problem=str(error))
        log.error("the state contradicts itself: story and journal are kept", file=str(story))
        return False

    def _arbiter(self, durable: Durable) -> Arbiter:
        """The Arbiter, with cells and the virtual clusters' policies if there is a cells file."""
        supply = None
        if self.config.cells:
            self._found, self._cells_text = self._layout()
            supply = CellSupply(self._found)
            self._policy = ByVirtualCluster(self._policy, self._policies(self._found))
        epoch, journal_id = self._journal.epoch, self._journal.id[:8]
        settings = replace(settings_of(self.config), gpu_speeds=self._speeds)
        return Arbiter(settings, self._policy, durable, self._topology, epoch, supply, journal_id)

    def _shadow_rounds(self) -> shadow.ShadowRounds:
        """Shadow rounds with their own policies and cells, so that they share no state with the Arbiter."""
        found = self._found

        def policy() -> Policy:
            made = policy_of(self.config, self._name)
            return made if found is None else ByVirtualCluster(made, self._policies(found))

        supply = (lambda: None) if found is None else (lambda: CellSupply(found))
        return shadow.ShadowRounds(settings_of(self.config), policy, self._topology, supply)

    def _start_parts(self, parts: ExitStack, forecaster: Forecaster, durable: Durable) -> None:
        """Start the parts in order; they stop in reverse order."""
        config = self.config
        days_s, most = config.journal.retention_days * DAY_S, config.journal.max_mb << 20
        keeper = JournalKeeper(config.journal_file, days_s, most, self.driver.clock.now_s)
        at, handle = config.bridge, self._endpoint.handle
        bridge = BridgeServer(at.host, at.port, at.token_file, handle, lambda e: self._fail("the bridge ended", e))
        more: list[Periodic | Notifier | MetricsServer] = [
            Periodic("isonomy-shadow", LOOK_S, self._look, "no look at the shadow")
        ]
        if config.standby is not None:
            problem = "apps and clocks could not be saved on HDFS"
            more.append(Periodic("isonomy-keep", config.standby.every_s, self._keep, problem))
        if config.notify is not None:
            self.feed.notifier = Notifier(config.notify.url, durable)
            more.append(self.feed.notifier)
        if config.metrics is not None:
            token, text = config.state_dir / METRICS_TOKEN_FILE, self._router.metrics_text
            more.append(MetricsServer(config.metrics, text, config.agents.tls, token))
        for part in (keeper, self.driver, self._agents, self._endpoint, bridge, forecaster, *more):
            part.start()
            parts.callback(part.stop)
        threading.Thread(target=self._watch_driver, name="isonomy-watch", daemon=True).start()

    def _watch_parts(self, metrics: Metrics, arbiter: Arbiter) -> None:
        """Register gauges for the process's parts."""
        journal, endpoint, takeover = self.config.journal_file, self._endpoint, self._takeover
        files = [journal, journal.with_name(journal.name + "-wal")]
        for name, about, source in (
            ("arbiter_queue_depth", "Events and queries that wait for the Arbiter.",
             lambda: self.driver.waiting),
            ("bridge_silence_seconds", "Since the ResourceManager's plugin was last heard of.",
             lambda: endpoint.silent_s),
            ("journal_bytes", "The journal with its write-ahead log.",
             lambda: sum(f.stat().st_size for f in files if f.exists())),
            ("state_dir_free_bytes", "Free on the journal's disk.",
             lambda: shutil.disk_usage(journal.parent).free),
            ("clock_behind_seconds", "How far this machine's clock is behind the ResourceManager's or the journal's.",
             lambda: max(0.0, arbiter.durable.behind_s, self.driver.clock.now_s() - time.time())),
            ("standing_by", "1 while another ResourceManager is the active one.",
             lambda: takeover is not None and not endpoint.connected),
            ("standby_age_seconds", "Since the state that a standby would take over was stored; 0 without a standby, or"
             " while standing by.",
             lambda: takeover.age_s if takeover is not None and endpoint.connected else 0.0),
        ):  # fmt: skip
            metrics.watch(f"isonomy_{name}", about, source)

    def _from_cluster(self, event: Event) -> None:
        """Submit a plugin's event; a control plane with a standby takes over before it handles a snapshot."""
        if isinstance(event, ClusterSnapshot) and self._takeover is not None:
            try:
                if (before := self._takeover.before_snapshot(self.driver)) is not None:
                    self._read_cells_anew(before)
            except Superseded:
                self._stale = True
                self._stop.set()
                raise
        self.driver.submit(event)

    def _read_cells_anew(self, before: str) -> None:
        """At a takeover, maybe long after the start, apply the cells file if it has changed; `before`: what it was."""
        file, now = self.config.cells, ""
        with suppress(OSError, UnicodeDecodeError):  # the router says why
            now = file.read_text(encoding="utf-8") if file is not None else ""
        if now != self._cells_text:
            status, answer = self._router.handle("POST", "cells-apply", {}, "the takeover", True)
            say, found = (log.warning, "text") if status == 200 else (log.error, "error")
            say("the cells file has changed since the start", file=str(file), result=answer[found])
        if before not in ("", self._cells_text):
            log.error("other cells were in force: copy their file here, then isonomy cells apply", file=str(file))

    def _keep(self) -> None:
        """Store apps and clocks on HDFS while this control plane's ResourceManager is active."""
        picture = self._router.pictures.newest()
        if self._takeover is not None and picture.arbiter.cluster.ready:
            self._takeover.keep(picture.arbiter.durable.kept(), picture.now_s)  # the picture's time, not the present

    def _look(self) -> None:
        """Hold a shadow round, in mode shadow."""
        seen = self.driver.call(lambda a, _: shadow.seen(a))
        if seen is None:
            self._shadow.interrupted()
        elif (found := self._shadow.look(seen, self.driver.clock.now_s())) is not None:
            log.info("as if", given=dict(found.given), would_give=dict(found.would_give))

    def _layout(self) -> tuple[Layout, str]:
        """The cells file's layout and its text; raises ConfigError if the file is wrong or not feasible, or lacks a
        trader's."""
        path = self.config.cells
        assert path is not None
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            raise ConfigError([f"cells: {path}: cannot be read: {why}"]) from error
        found = layout(parse(text, CellsFile, path.name), self._topology, path.name)
        lead_s = settings_of(self.config).lead
        for vc in found.vcs:
            if vc.terms.lease_s is not None and vc.terms.lease_s < 2 * lead_s:
                line = f"must be at least twice the lead of {lead_s:g} s (got {vc.terms.lease_s:g})"
                raise ConfigError([f"{path.name}: virtual_clusters.{vc.name}.lease_s: {line}"])
        unknown = sorted(self.config.exchange.traders.keys() - {vc.name for vc in found.vcs})
        if unknown:
            known = ", ".join(vc.name for vc in found.vcs)
            raise ConfigError([f"exchange.traders: no virtual cluster {unknown[0]}; the cells file has {known}"])
        return found, text

    def _policies(self, found: Layout) -> dict[str, Policy]:
        """The policies of virtual clusters that set a policy, options or private schedule; raises ConfigError."""
        file = self.config.cells.name if self.config.cells else ""
        return own_policies(
            CellSupply(found), self._name, {}, lambda name, **own: policy_of(self.config, name, own), file
        )

    def read_cells(self, named: str) -> tuple[Layout, Mapping[str, Policy], str, Callable[[], None]]:
        """Read the cells file again and check it; `named`: the path that the operator gave, or empty.

        The third is the command that puts the former cells back, which are kept in the state folder; the last is to be
        called once these are in force.
        """
        assert self.config.cells is not None
        if named and Path(named).resolve() != self.config.cells.resolve():
            raise ConfigError([f"cells: isonomy.yaml names {self.config.cells}; change that file (got {named})"])
        found, text = self._layout()
        policies, back = self._policies(found), ""
        if self._cells_text not in ("", text):
            kept = self.config.state_dir / f"cells-{_utc()}.yaml"
            kept.write_text(self._cells_text, encoding="utf-8")
            back = f"cp {kept} {self.config.cells} && isonomy cells apply {self.config.cells}"
        return found, policies, back, partial(setattr, self, "_cells_text", text)

    def _watch_driver(self) -> None:
        self.driver.stopped.wait()
        self._stop.set()

    def _fail(self, what: str, why: BaseException) -> None:
        """End `run` with an error because an essential part has failed, so that a supervisor restarts the process."""
        self._failure = f"{what}: {why}"
        self._stop.set()

    def stop(self) -> None:
        """Ask `run` to return; from any thread or signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Do housekeeping until `stop` or a failure, then stop all parts; returns the exit status."""
        sampled_s, collected_s = float("-inf"), time.monotonic()
        while not self._stop.wait(HOUSEKEEPING_S):
            if time.monotonic() - collected_s >= COLLECT_S:
                gc.collect()
                collected_s = time.monotonic()
            if self._takeover is not None and not self._endpoint.connected:
                self._agents.stand_by()
            try:
                self.driver.call(lambda a, now_s: None)
                _tell_supervisor("WATCHDOG=1")
                self.report_mismatches()
                self.feed.trends.keep()
                now_s = self.driver.clock.now_s()
                if now_s - sampled_s >= SAMPLE_S:
                    picture = self._router.pictures.newest()
                    self.feed.trends.sample(picture.arbiter, picture.now_s)
                    sampled_s = now_s
            except (TimeoutError, Overloaded):
                log.warning("the Arbiter is busy; housekeeping waits")
            except Exception:  # nothing that serves depends on it
                log.exception("housekeeping failed; it is tried again", retry_s=HOUSEKEEPING_S)
        self._parts.close()
        self.feed.trends.keep()
        if self.driver.failed is not None:
            log.error("the control plane stops: the Arbiter failed", error=str(self.driver.failed))
            return 1
        if self._failure:
            log.error("the control plane stops", error=self._failure)
            return 1
        log.info("stopped")
        return 1 if self._wrong_topology or self._stale else 0

    def report_mismatches(self) -> None:
        """Log each new mismatch between the topology file and the registered NodeManagers.

        If registered NodeManagers contradict the file before they ever matched it, stop the control plane instead.
        """
        topology = self._topology
        if topology is None:
            return
        ready, registered, leased = self.driver.call(
            lambda a, now_s: (
                a.cluster.ready,
                {n.host: n.gpus for n in a.cluster.nodes.values()},
                bool(a.durable.leases),
            )
        )
        if not ready:
            return
        found = mismatches(topology, registered)
        self._topology_held = self._topology_held or leased or not found
        wrong = [line for line in found if "registered" in line and "no NodeManager" not in line]
        if wrong and not self._topology_held:
            for line in wrong:
                click.echo(f"error: {self.config.topology}: {line}; correct the file or the node", err=True)
            self._wrong_topology = True
            self._stop.set()
            return
        for line in found:
            if line not in self.mismatches:
                log.error("topology mismatch", file=str(self.config.topology), problem=line)
        self.mismatches = found


def _tell_supervisor(state: str) -> None:
    """Tell systemd, where it started this process (sd_notify(3)): the unit's WatchdogSec ends one that is silent."""
    if address := os.environ.get("NOTIFY_SOCKET", ""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to, suppress(OSError):
            to.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def _utc() -> str:
    """The time as in names of files."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _ca_of(config: Config) -> str:
    """The CA certificate that Agents trust, as PEM; empty without TLS. Raises ConfigError."""
    if config.agents.tls is None:
        return ""
    try:
        return config.agents.tls.ca.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError([f"agents.tls.ca: {config.agents.tls.ca} cannot be read: {e}"]) from e
