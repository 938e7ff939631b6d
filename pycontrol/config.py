"""isonomy.yaml and the topology file: what they may say, read strictly; errors that say what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from pycontrol.model.topology import Machine, Topology
from pycontrol.policies import registry

LEAD_MAX_S = 60.0
"""The longest default lead of a round before the leases end, in seconds (design.md, How a lease travels)."""
LEAD_FRACTION = 0.2
"""A round's lead is at most this part of the lease."""


class ConfigError(Exception):
    """A configuration that cannot be used; each of `lines` names file, key and what to do."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def _as_path(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) else value


FilePath = Annotated[Path, BeforeValidator(_as_path)]
Host = Annotated[str, Field(min_length=1, pattern=r"^\S+$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """What all sections share: no unknown key, no guessed type, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Tls(Section):
    """PEM files of the Agents' gRPC server; `ca` is what Agents trust."""

    cert: FilePath
    key: FilePath
    ca: FilePath


class Bridge(Section):
    """Where the ResourceManager's plugin finds the control plane (py4j, loopback)."""

    host: Host = "127.0.0.1"
    port: Port = 26500
    token_file: FilePath = Path("bridge.token")
    """64 hex characters, mode 0600, made by the control plane; relative to `state_dir`."""


class Agents(Section):
    """Where Agents and workers find the Arbiter (gRPC)."""

    host: Host = "0.0.0.0"
    """The address it listens on."""
    port: Port = 26501
    advertise: Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")] | None = None
    """host:port that Agents dial, of a pair of control planes both, joined by a comma; by default this machine's
    name and `port`."""
    tls: Tls | None = None


class Deadlines(Section):
    """Who answers later sits the round out."""

    rho_s: Seconds = 0.5
    bid_s: Seconds = 2.0
    solve_s: Seconds = 2.0


class Standin(Section):
    """The stand-in that bids for apps without an Agent."""

    revocable: bool = False


class Standby(Section):
    """Where apps and fairness clocks are kept for the control plane of a standby ResourceManager (HDFS)."""

    webhdfs: Annotated[str, Field(pattern=r"^https?://\S+$")]
    """The NameNode's web address; several, joined by ;, where there are several."""
    folder: Annotated[str, Field(pattern=r"^/\S+$")] = "/isonomy/clocks"
    user: Annotated[str, Field(min_length=1)] | None = None
    """HDFS user without Kerberos; default: the one that runs the control plane."""
    principal: Annotated[str, Field(pattern=r"^[^\s@]+@[^\s@]+$")] | None = None
    """With Kerberos: who it is, by the keytab; default: the ticket cache."""
    keytab: FilePath | None = None
    ca: FilePath | None = None
    """PEM certificate by which an https address is known; default: those that the machine trusts."""
    every_s: Seconds = 60.0

    @model_validator(mode="after")
    def _one_identity(self) -> Standby:
        if (self.principal is None) != (self.keytab is None):
            raise ValueError("principal and keytab: give both or neither")
        if self.principal is not None and self.user is not None:
            raise ValueError("user: is the principal's with Kerberos; leave it out")
        return self


class CellExchange(Section):
    """How virtual clusters lend each other cells (docs/cells.md)."""

    policy: Literal["balanced", "credit", "auction"] = "balanced"
    mode: Literal["manual", "auto"] = "manual"
    """auto: idle cells are offered, and who waits for GPUs requests some, without being told."""
    idle_s: Seconds = 600.0
    """auto: cells are offered once they were idle for so long."""
    forecast_s: Seconds = 3600.0
    """auto: a virtual cluster is expected to need as many cells as at most in this time."""
    lend_s: Seconds = 3600.0
    """auto: how long they are lent for, at most."""
    traders: Mapping[str, list[str]] = {}
    """Queue -> users who may exchange its cells, beside YARN's admins."""

    @model_validator(mode="after")
    def _forecast_is_longer(self) -> Self:
        if self.forecast_s < self.idle_s:
            raise ValueError(
                f"exchange: forecast_s: must be at least idle_s, {self.idle_s:g} (got {self.forecast_s:g})"
            )
        return self


class MetricsListener(Section):
    """Metrics on a port of their own, for a scraper on this machine; the ResourceManager's route needs SPNEGO there."""

    host: Literal["127.0.0.1", "localhost"] = "127.0.0.1"
    port: Port


class Notify(Section):
    """A webhook that is told when apps start, lose GPUs, and end."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/\S*)?$")]


class JournalKeeping(Section):
    """How long the journal keeps what is over."""

    retention_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    max_mb: Annotated[int, Field(ge=16)] = 2048
    """What is older goes even within the retention."""


class Config(Section):
    """The whole of isonomy.yaml. Relative paths are relative to the file."""

    topology: FilePath | None = None
    """Expected machines; without it the cluster is what the NodeManagers register."""
    cells: FilePath | None = None
    """Virtual clusters: which leaf queue owns which cells (docs/cells.md); without it the whole cluster is one."""
    exchange: CellExchange = CellExchange()
    state_dir: FilePath = Path("state")
    bridge: Bridge = Bridge()
    agents: Agents = Agents()
    lease_s: Seconds = 600.0
    lead_s: Seconds = 0.0
    """Seconds before the leases' end at which their round is held; default min(60, lease_s / 5)."""
    lease_timing: Literal["aligned", "machine", "spread"] = "aligned"
    """Leases end together everywhere, together on each machine, or each a lease length after it began."""
    grant_timeout_s: Seconds = 60.0
    f: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.8
    """Fairness knob: the worst 1 - f of the apps are asked for bids (Themis, section 4)."""
    policy: str = "isonomy"
    """The policy of the rounds; `isonomy policies` lists them."""
    policy_options: Mapping[str, Any] = {}
    """Its options, by name."""
    round_retry_s: Seconds = 5.0
    deadlines: Deadlines = Deadlines()
    standin: Standin = Standin()
    standby: Standby | None = None
    """Without it a control plane with an empty journal starts with fresh clocks."""
    journal: JournalKeeping = JournalKeeping()
    notify: Notify | None = None
    metrics: MetricsListener | None = None
    """Absent: metrics are served by the ResourceManager alone."""
    seed: Annotated[int, Field(ge=0)] = 0
    token_ttl_s: Seconds = 7 * 86400.0
    rm_web: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """The ResourceManager's web address for the CLI; default from yarn-site.xml."""

    @model_validator(mode="before")
    @classmethod
    def _default_lead(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("lead_s") is None:
            lease_s = values.get("lease_s", 600.0)
            if isinstance(lease_s, (int, float)) and lease_s > 0:
                return {**values, "lead_s": min(LEAD_MAX_S, lease_s * LEAD_FRACTION)}
            return {**values, "lead_s": LEAD_MAX_S}
        return values

    @model_validator(mode="after")
    def _lead_fits_lease(self) -> Self:
        limit_s = self.lease_s * LEAD_FRACTION
        if self.lead_s > limit_s * (1 + 1e-9):
            raise ValueError(f"lead_s: must be at most a fifth of lease_s, {limit_s:g} (got {self.lead_s:g})")
        return self

    @model_validator(mode="after")
    def _policy_is_known(self) -> Self:
        if self.policy not in registry.names():
            raise ValueError(f"policy: {registry.unknown(self.policy)}")
        try:
            registry.make(self.policy, **self.policy_options)
        except registry.UnknownPolicy as problem:
            raise ValueError(f"policy_options: {problem}") from problem
        return self

    @property
    def journal_file(self) -> Path:
        """The SQLite journal."""
        return self.state_dir / "journal.sqlite"


class MachineSpec(Section):
    """A machine as the topology file names it; memory and vcores are for dev-cluster."""

    host: Host
    gpus: Annotated[int, Field(ge=0)]
    type: Annotated[str, Field(min_length=1)] = "gpu"
    memory_mb: Annotated[int, Field(gt=0)] = 16384
    vcores: Annotated[int, Field(gt=0)] = 16


class RackSpec(Section):
    """A rack: machines with a fast interconnect."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^\s/]+$")]
    machines: Annotated[list[MachineSpec], Field(min_length=1)]


class TopologySpec(Section):
    """The whole topology file."""

    virtual_gpus: bool = False
    """GPUs that are counted but do not compute: workers pace their steps."""
    speeds: dict[str, Seconds] = {}
    """Of virtual GPUs, type -> how much faster than a type of speed 1 it computes; 1 where a type is not named."""
    racks: Annotated[list[RackSpec], Field(min_length=1)]

    @model_validator(mode="after")
    def _hosts_differ(self) -> Self:
        for what, names in (
            ("racks: name", [r.name for r in self.racks]),
            ("racks: host", [m.host for m in self.machines]),
        ):
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]} is there twice; give each its own")
        return self

    @model_validator(mode="after")
    def _speeds_are_of_virtual_types(self) -> Self:
        types = sorted({m.type for m in self.machines})
        for name in self.speeds:
            if not self.virtual_gpus:
                raise ValueError(f"speeds: {name}: only virtual GPUs have a configured speed; set virtual_gpus: true")
            if name not in types:
                raise ValueError(f"speeds: no machine has the type {name}; types are {', '.join(types)}")
        return self

    @property
    def machines(self) -> list[MachineSpec]:
        """All machines, in the file's order."""
        return [machine for rack in self.racks for machine in rack.machines]

    def topology(self) -> Topology:
        """As the policies see it."""
        return Topology.of(
            Machine(m.host, rack.name, m.gpus, m.type, virtual=self.virtual_gpus)
            for rack in self.racks
            for m in rack.machines
        )


S = TypeVar("S", bound=Section)


def load_config(path: Path | str) -> Config:
    """isonomy.yaml, with its relative paths made absolute; ConfigError says all that is wrong."""
    file = Path(path)
    config = _read(file, Config)
    base = file.resolve().parent
    state_dir = base / config.state_dir
    bridge = config.bridge.model_copy(update={"token_file": state_dir / config.bridge.token_file})
    agents = config.agents
    if agents.tls:
        tls = Tls(cert=base / agents.tls.cert, key=base / agents.tls.key, ca=base / agents.tls.ca)
        agents = agents.model_copy(update={"tls": tls})
    topology = base / config.topology if config.topology else None
    return config.model_copy(update={"state_dir": state_dir, "bridge": bridge, "agents": agents, "topology": topology})


def load_topology_spec(path: Path | str) -> TopologySpec:
    """The topology file as it is written."""
    return _read(Path(path), TopologySpec)


def load_topology(path: Path | str) -> Topology:
    """The topology file as the policies see it."""
    return load_topology_spec(path).topology()


def mismatches(topology: Topology, registered: Mapping[str, int]) -> list[str]:
    """Where the NodeManagers that registered (GPUs by host) and the topology disagree, one line a node."""
    lines = []
    for host, machine in sorted(topology.machines.items()):
        if host not in registered:
            lines.append(f"{host}: the topology says {machine.gpus} GPUs, but no NodeManager registered")
        elif registered[host] != machine.gpus:
            lines.append(
                f"{host}: the topology says {machine.gpus} GPUs, its NodeManager registered {registered[host]}"
            )
    lines += [
        f"{host}: its NodeManager registered {gpus} GPUs, but the topology does not name it"
        for host, gpus in sorted(registered.items())
        if host not in topology.machines
    ]
    return lines


def _read(file: Path, model: type[S]) -> S:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text"]) from error
    return parse(text, model, file.name)


def parse(text: str, model: type[S], name: str) -> S:
    """YAML text as `model`; `name` is the file's in each line of a ConfigError."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise ConfigError([f"{name}:{where} is not YAML: {problem}"]) from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError([f"{name}: must be a mapping of keys to values (got {type(data).__name__})"])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError([f"{name}: {_line(e, model)}" for e in error.errors()]) from error


def _line(error: ErrorDetails, model: type[Section]) -> str:
    """One error of pydantic in our words: `lease_s: must be > 0 (got -1)`."""
    key = _key(error["loc"])
    context = error.get("ctx", {})
    got = f" (got {_shown(error['input'])})"
    match error["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key{_nearest(error['loc'], model)}"
        case "missing":
            return f"{key}: is missing; add it"
        case "value_error":
            return str(context["error"])
        case "greater_than":
            return f"{key}: must be > {context['gt']:g}{got}"
        case "greater_than_equal":
            return f"{key}: must be >= {context['ge']:g}{got}"
        case "less_than_equal":
            return f"{key}: must be <= {context['le']:g}{got}"
        case "finite_number":
            return f"{key}: must be a finite number{got}"
        case "literal_error":
            return f"{key}: must be {context['expected']}{got}"
        case "is_instance_of":
            return f"{key}: must be a path{got}"
        case "string_pattern_mismatch":
            return f"{key}: must look like {_LIKE.get(context['pattern'], context['pattern'])}{got}"
        case kind if kind.endswith(("_type", "_parsing")):
            return f"{key}: must be {_KINDS.get(kind.rsplit('_', 1)[0], 'of another type')}{got}"
    return f"{key}: {error['msg'][:1].lower()}{error['msg'][1:]}{got}"


_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "model": "a mapping of keys to values",
}
_LIKE = {
    r"^\S+:\d{1,5}$": "host:port",
    r"^https?://\S+$": "http://host:port",
    r"^\S+$": "a host name",
    r"^[^\s/]+$": "a name without blanks and slashes",
}


def _key(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key or "file"


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(location: tuple[int | str, ...], model: type[Section]) -> str:
    """`, did you mean lease_s?`, or the keys that are known there."""
    known: Iterable[str] = model.model_fields
    for part in location[:-1]:
        if isinstance(part, str):
            inner = _section_of(model.model_fields[part].annotation) if part in model.model_fields else None
            if inner is None:
                return ""
            model, known = inner, inner.model_fields
    close = difflib.get_close_matches(str(location[-1]), list(known), n=1)
    return f", did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _section_of(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((s for a in get_args(annotation) if (s := _section_of(a))), None)
