"""Configuration files: isonomy.yaml, whose keys are here, the topology, and strict reading of YAML.

Imports nothing that it configures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pycontrol.config.accounts_section import GroupSection, accounts_of
from pycontrol.config.strict_yaml import FilePath, Host, NamedPath, Port, Seconds, read
from pycontrol.config.strict_yaml import Section as Section
from pycontrol.config.strict_yaml import mapping as mapping
from pycontrol.config.strict_yaml import parse as parse
from pycontrol.config.topology_file import MachineSpec as MachineSpec
from pycontrol.config.topology_file import RackSpec as RackSpec
from pycontrol.config.topology_file import TopologySpec as TopologySpec
from pycontrol.config.topology_file import load_topology as load_topology
from pycontrol.config.topology_file import load_topology_spec as load_topology_spec
from pycontrol.config.topology_file import mismatches as mismatches
from pycontrol.configerror import ConfigError as ConfigError

LEAD_MAX_S = 60.0
"""The longest default lead of a round before the leases end, in seconds."""
LEAD_FRACTION = 0.2
"""A round's lead is at most this part of the lease."""


def _lead_s(read: dict[str, Any]) -> float:
    """The default lead; `read`: the keys before, without those that are wrong."""
    return min(LEAD_MAX_S, float(read.get("lease_s", math.inf)) * LEAD_FRACTION)


def on_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host in ("localhost", "::1") or host.startswith("127.")


class Tls(Section):
    """PEM files of the Agents' gRPC server; `ca` is what Agents trust."""

    cert: FilePath
    """The server's certificate, with its chain."""
    key: FilePath
    """Its private key, mode 0600."""
    ca: FilePath
    """The certificate of the authority that signed it."""


class Bridge(Section):
    """Where the ResourceManager's plugin finds the control plane (py4j, loopback)."""

    host: Host = "127.0.0.1"
    """The address the bridge listens on; yarn-site.xml: isonomy.bridge.host must agree."""
    port: Port = 26500
    """Its port; yarn-site.xml: isonomy.bridge.port must agree."""
    token_file: NamedPath = Path("bridge.token")
    """64 hex characters, mode 0600, made by the control plane; relative to `state_dir`."""


class AgentsService(Section):
    """Where Agents and workers find the Arbiter (gRPC)."""

    host: Host = "0.0.0.0"
    """The address it listens on."""
    port: Port = 26501
    """The port it listens on."""
    advertise: Annotated[str, Field(pattern=r"^[^\s,]+:\d{1,5}(,[^\s,]+:\d{1,5})*$")] | None = None
    """host:port that Agents connect to; for a pair of control planes both, separated by a comma; default: this
    machine's name and `port`."""
    tls: Tls | None = None


class Deadlines(Section):
    """Deadlines of a round; an app that answers later misses it."""

    rho_s: Seconds = 0.5
    """For finish-time fairness, which an offer is chosen by."""
    bid_s: Seconds = 2.0
    """For bids on an offer."""
    solve_s: Seconds = 2.0
    """For the policy's decision; then it takes the best plan found, and the receipt says so."""


class Standin(Section):
    """The stand-in that bids for apps without an Agent."""

    revocable: Literal["auto"] | bool = "auto"
    """Whether their containers lose GPUs at leases' ends, as apps with Agents do; auto: rarely enough."""
    preemptions_per_hour: int = 3
    """auto: how often within an hour an app may lose GPUs in rounds."""
    exempt_queues: list[str] = Field(default_factory=list)
    """Queues in which no app without an Agent loses GPUs in rounds."""
    interactive_gpus: Annotated[int, Field(ge=0)] = 1
    """GPUs that the apps of a user with the tag isonomy.interactive may hold together."""
    interactive_idle_s: Seconds = 1800.0
    """Their containers end after this idle time."""


class WebHdfs(Section):
    """How the control plane itself reaches HDFS."""

    webhdfs: Annotated[str, Field(pattern=r"^https?://\S+$")]
    """The NameNode's web address; several are separated by ;."""
    principal: Annotated[str, Field(pattern=r"^[^\s@]+@[^\s@]+$")] | None = None
    """With Kerberos: its principal, from the keytab; default: the ticket cache."""
    keytab: FilePath | None = None
    """The principal's keytab, mode 0600; relative to the file."""
    ca: FilePath | None = None
    """PEM file of the CA of an https address; default: the CAs that the machine trusts."""

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if (self.principal is None) != (self.keytab is None):
            raise ValueError("principal and keytab: give both or neither")
        return self


class HdfsTokenSettings(WebHdfs):
    """The proxy user that asks HDFS for new tokens of users whose apps outlive their first one
    (docs/decisions/009-hdfs-tokens-past-seven-days.md)."""


class Standby(WebHdfs):
    """The HDFS folder in which apps and fairness clocks are saved for the standby ResourceManager's control plane."""

    folder: Annotated[str, Field(pattern=r"^/\S+$")] = "/isonomy/clocks"
    """The folder on HDFS; both control planes must name the same."""
    user: Annotated[str, Field(min_length=1)] | None = None
    """HDFS user without Kerberos; default: the user that runs the control plane."""
    every_s: Seconds = 60.0
    """Seconds between two saves."""

    @model_validator(mode="after")
    def _user_or_principal(self) -> Self:
        if self.principal is not None and self.user is not None:
            raise ValueError("user: is the principal's with Kerberos; leave it out")
        return self


class CellExchange(Section):
    """How virtual clusters lend each other cells (docs/cells.md)."""

    former: ClassVar[Mapping[str, tuple[object, str]]] = {
        "policy": ("balanced", "is gone: who has lent most is served first (docs/cells.md); leave it out"),
        "mode": ("manual", "is gone: `isonomy exchange offer` and `request` post what is lent; leave it out"),
        **dict.fromkeys(("idle_s", "forecast_s", "lend_s"), (None, "is gone with `mode: auto`; leave it out")),
    }
    traders: Mapping[str, list[str]] = {}
    """Queue -> users who may exchange its cells, in addition to YARN's admins."""


class MetricsListener(Section):
    """Metrics on a port of their own, for scrapers that SPNEGO keeps out of the ResourceManager's route."""

    host: Host = "127.0.0.1"
    """The address it listens on. One that other machines reach has the certificate of agents.tls and asks for the
    bearer token in `metrics.token` of `state_dir`."""
    port: Port
    """The port it listens on."""


class NotifySettings(Section):
    """A webhook that receives an event when an app starts, loses GPUs or ends."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/\S*)?$")]
    """Where events are posted as JSON."""


class JournalKeeping(Section):
    """How long the journal keeps ended apps and leases."""

    retention_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """Days after which ended apps and leases are deleted."""
    max_mb: Annotated[int, Field(ge=16)] = 2048
    """Above this size the oldest facts are deleted, even within the retention."""


class Config(Section):
    """The whole of isonomy.yaml. Relative paths are relative to the file."""

    former: ClassVar[Mapping[str, tuple[object, str]]] = {
        "lease_timing": ("aligned", "is gone: leases end together everywhere; leave it out"),
        "unsaved_last": (False, "is gone: apps without checkpoints lose GPUs in the policy's order; leave it out"),
    }

    topology: FilePath | None = None
    """The expected machines; without it, whatever the NodeManagers register."""
    cells: FilePath | None = None
    """Virtual clusters: which leaf queue owns which cells (docs/cells.md); without it the whole cluster is one."""
    exchange: CellExchange = CellExchange()
    state_dir: FilePath = Path("state")
    """The folder of the journal, the key of tokens and the bridge's token; on a local disk, mode 0700."""
    bridge: Bridge = Bridge()
    agents: AgentsService = AgentsService()
    lease_s: Seconds = 600.0
    """How long an app keeps GPUs before they are offered again, in seconds."""
    lead_s: Seconds = Field(default_factory=_lead_s)
    """Seconds before the leases' end at which their round is held; default min(60, lease_s / 5)."""
    grant_timeout_s: Seconds = 60.0
    """A grant whose containers are not up after so many seconds lapses."""
    f: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.8
    """Fairness knob: the worst 1 - f of the apps are asked for bids (Themis, section 4)."""
    policy: str = "isonomy"
    """The policy of the rounds; `isonomy policies` lists them."""
    policy_options: Mapping[str, Any] = {}
    """Its options, by name."""
    accounts: Mapping[str, GroupSection] = {}
    """Groups of groups and users, with weights and limits (docs/policy.md); `others` are the users of no group."""
    round_retry_s: Seconds = 5.0
    """Seconds until the next round after one that placed nothing while GPUs were free."""
    deadlines: Deadlines = Deadlines()
    standin: Standin = Standin()
    standby: Standby | None = None
    """Without it a control plane with an empty journal starts with fresh clocks."""
    hdfs_tokens: HdfsTokenSettings | None = None
    """Without it an app's checkpoints end with the HDFS token of its submission (Hadoop's default: seven days)."""
    journal: JournalKeeping = JournalKeeping()
    notify: NotifySettings | None = None
    metrics: MetricsListener | None = None
    """Absent: metrics are served by the ResourceManager alone."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of all that policies draw by chance."""
    token_ttl_s: Seconds = 7 * 86400.0
    """How long an app's Isonomy token is valid, in seconds."""
    rm_web: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """The ResourceManager's web address for the CLI; default from yarn-site.xml."""

    @model_validator(mode="after")
    def _lead_fits_lease(self) -> Self:
        limit_s = self.lease_s * LEAD_FRACTION
        if self.lead_s > limit_s * (1 + 1e-9):
            raise ValueError(f"lead_s: must be at most a fifth of lease_s, {limit_s:g} (got {self.lead_s:g})")
        return self

    @model_validator(mode="after")
    def _accounts_are_a_tree(self) -> Self:
        accounts_of(self.accounts)
        return self

    @model_validator(mode="after")
    def _tokens_are_not_read_on_the_way(self) -> Self:
        if self.hdfs_tokens is not None and self.agents.tls is None and not on_loopback(self.agents.host):
            raise ValueError("hdfs_tokens: users' HDFS tokens would cross the network in the clear; set agents.tls")
        return self

    @model_validator(mode="after")
    def _metrics_are_not_open(self) -> Self:
        if self.metrics is not None and self.agents.tls is None and not on_loopback(self.metrics.host):
            raise ValueError("metrics.host: other machines reach it: set agents.tls, whose certificate it has, too")
        return self

    @property
    def journal_file(self) -> Path:
        """The SQLite journal."""
        return self.state_dir / "journal.sqlite"


def load_config(path: Path | str) -> Config:
    """Reads isonomy.yaml; its paths become absolute. Raises ConfigError with all problems."""
    file = Path(path)
    config = read(file, Config)
    state_dir = file.resolve().parent / config.state_dir
    bridge = config.bridge.model_copy(update={"token_file": state_dir / config.bridge.token_file})
    return config.model_copy(update={"state_dir": state_dir, "bridge": bridge})
