"""Everything that can happen to the Arbiter (events) and everything it can ask for (effects).

The Arbiter is a pure state machine: `handle(event, now) -> [effect]`. The cluster and the simulator
both feed it these values and carry out the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pycontrol.model.auction import Bid, Demand, Plan, Snapshot
from pycontrol.model.cluster import Ask, Container, Node, Queue, YarnApp
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

# ---- events: the cluster


@value
class ClusterSnapshot:
    """The whole truth about what runs, after either side started."""

    ready: bool
    nodes: tuple[Node, ...]
    apps: tuple[YarnApp, ...]
    asks: tuple[Ask, ...]
    containers: tuple[Container, ...]
    queues: tuple[Queue, ...] = ()
    rm_life: str = ""
    """One life of the ResourceManager's scheduler; empty: not known."""
    shadow: bool = False
    """CapacityScheduler places GPUs, and nothing that is decided here is done; never ready."""


@value
class NodeUp:
    """A node registered, or something of it changed: resources, health, partition, decommissioning, use."""

    node: Node


@value
class NodeDown:
    """A node is lost, decommissioned or unhealthy."""

    node_id: str
    reason: str = ""


@value
class AppAdded:
    """An application was accepted by the ResourceManager."""

    app: YarnApp


@value
class AppUpdated:
    """An application was moved to another queue, or its priority changed."""

    app: YarnApp


@value
class AppRemoved:
    """An application ended."""

    app_id: str
    final_state: str = ""


@value
class AttemptAdded:
    """An attempt of an application began."""

    attempt_id: str
    app_id: str


@value
class AttemptRemoved:
    """An attempt ended; its asks are void."""

    attempt_id: str
    app_id: str


@value
class AskChanged:
    """An ask with GPUs was made, changed or (count 0) withdrawn."""

    ask: Ask


@value
class ContainerUp:
    """A container with GPUs was allocated, recovered or launched."""

    container: Container
    running: bool = False


@value
class ContainerGone:
    """A container ended."""

    container_id: str
    exit_status: int = 0
    diagnostics: str = ""


@value
class DirectiveDone:
    """How a directive ended. `container_id`: of a carried-out Place."""

    directive_id: str
    ok: bool
    container_id: str = ""
    reason: str = ""


@value
class ClusterReady:
    """The ResourceManager finished recovering."""


@value
class ClusterLost:
    """The plugin has not been heard of: leases are frozen."""


# ---- events: Agents


@value
class AgentUp:
    """An Agent's stream began with Register."""

    app_id: str
    attempt_id: str
    app_scheduler: str
    demand: Demand
    grant_ids: tuple[str, ...] = ()
    user: str = ""
    """Whom its token was issued to."""


@value
class AgentLost:
    """An Agent's stream ended."""

    app_id: str


@value
class RhoReported:
    """Answer to AskRho."""

    app_id: str
    round_id: str
    rho: float
    demand: Demand


@value
class BidReceived:
    """Answer to Offer; `bid` is None where it could not be read, and `problem` says why."""

    app_id: str
    round_id: str
    bid: Bid | None
    problem: str = ""


@value
class WorkerPlan:
    """One worker of a gang: a job's tasks on one machine, with its GPUs and the ask that will carry it."""

    worker_id: str
    job_id: str
    gpus: tuple[Gpu, ...]
    allocation_request_id: int

    @property
    def host(self) -> str:
        """The machine of its GPUs."""
        return self.gpus[0].host


@value
class UsePlanned:
    """How an Agent will use GPUs it holds: whole gangs."""

    app_id: str
    use_id: str
    workers: tuple[WorkerPlan, ...]


@value
class GpusReleased:
    """GPUs that the app gives back before their leases end."""

    app_id: str
    gpus: frozenset[Gpu]
    reason: str = ""


@value
class JobProgress:
    """How far a job is. `launches` counts gang launches, restarts are launches - 1."""

    job_id: str
    state: str
    step: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    iter_time_s: float = 0.0
    slowdown: float = 0.0
    gpus: int = 0
    rung: int = 0
    launches: int = 0
    worker_failures: int = 0
    configuration: Mapping[str, str] = field(default_factory=dict)
    metric: float | None = None
    """What jobs are compared by."""
    until_step: int = 0
    """How far it trains now; 0: only its script knows."""
    note: str = ""
    """What its user should know."""
    checkpoints_failed: int = 0
    """Since the newest complete one."""


@value
class ProgressReported:
    """An Agent's progress report."""

    app_id: str
    demand: Demand
    jobs: tuple[JobProgress, ...]
    rho: float = 0.0
    links: tuple[tuple[str, str], ...] = ()
    """(label, address) for its page."""


@value
class AgentDone:
    """The app has found its best model, or failed."""

    app_id: str
    succeeded: bool
    message: str = ""
    best_job_id: str = ""
    best_configuration: Mapping[str, str] = field(default_factory=dict)
    best_accuracy: float = 0.0
    work_done_gpu_s: float = 0.0
    model_path: str = ""
    metric: str = ""
    """The name of what jobs were compared by."""
    best_metric: float | None = None


# ---- events: the operator, time, the solver


@value
class OperatorCommand:
    """A verb of the command line: kill APP, drain HOST, undrain HOST, pause, resume."""

    verb: str
    target: str = ""
    user: str = ""


@value
class ExchangePosted:
    """A virtual cluster offers or requests cells, or withdraws that (`verb`). A lot is (chain, cell type, count)."""

    verb: str
    posting_id: str
    vc: str
    lot: tuple[str, str, int] = ("", "", 0)
    end_s: float = 0.0
    in_return: tuple[str, str, int] | None = None
    price: float = 0.0
    expires_s: float | None = None
    """When a request that nobody served lapses; at its end at the latest."""


@value
class StandbyRestored:
    """What the control plane of another ResourceManager kept elsewhere (`Durable.kept`)."""

    data: Mapping[str, Any]
    epoch: int = 1
    """That of the control plane that continues from it."""


@value
class Tick:
    """Time has passed."""


@value
class ClockStepped:
    """The clock was set forward, or the machine slept: nobody could use the time that passed meanwhile."""


@value
class ClusterTime:
    """The ResourceManager's clock when it sent what follows; Unix seconds."""

    at_s: float


@value
class Decided:
    """The policy has decided a round; `problem` where it failed."""

    round_id: str
    plan: Plan | None
    problem: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """App id -> how the policy failed with it: the plan does without."""


Event = (
    ClusterSnapshot | NodeUp | NodeDown | AppAdded | AppUpdated | AppRemoved | AttemptAdded | AttemptRemoved
    | AskChanged | ContainerUp | ContainerGone | DirectiveDone | ClusterReady | ClusterLost
    | AgentUp | AgentLost | RhoReported | BidReceived | UsePlanned | GpusReleased | ProgressReported | AgentDone
    | OperatorCommand | ExchangePosted | StandbyRestored | Tick | ClockStepped | ClusterTime | Decided
)  # fmt: skip

# ---- effects: to Agents


@value
class Contention:
    """What an Agent needs to compute rho (Themis, 4.3)."""

    cluster_gpus: int
    n_avg: float
    now_s: float
    submitted_s: float
    lease_s: float


@value
class HeldGrant:
    """GPUs held by an app under one grant, with the end of their leases."""

    grant_id: str
    gpus: tuple[Gpu, ...]
    end_s: float
    available_s: float = 0.0


@value
class SendRegistered:
    """Answer to Register: every GPU that the app holds."""

    app_id: str
    contention: Contention
    grants: tuple[HeldGrant, ...]


@value
class SendHosts:
    """The machines are not as they were when the Agent registered."""

    app_id: str


@value
class SendAskRho:
    """Ask for the rho with the GPUs that are not ending."""

    app_id: str
    round_id: str
    contention: Contention
    ending: tuple[Gpu, ...]
    deadline_s: float


@value
class SendOffer:
    """Offer all GPUs of the round; ask for one bid."""

    app_id: str
    round_id: str
    contention: Contention
    machines: Mapping[str, int]
    ending: tuple[Gpu, ...]
    deadline_s: float


@value
class SendGrant:
    """A lease for each GPU. `renewal`: already held, nothing restarts."""

    app_id: str
    round_id: str
    grant: HeldGrant
    renewal: bool = False
    leftover: bool = False


@value
class SendRevoke:
    """Give these GPUs back by the deadline, which is `left_s` off."""

    app_id: str
    gpus: tuple[Gpu, ...]
    deadline_s: float
    left_s: float
    reason: str


@value
class SendUseReply:
    """Whether a Use lies inside the app's leases."""

    app_id: str
    use_id: str
    accepted: bool
    reason: str = ""


@value
class SendFinish:
    """The operator wants this app to end."""

    app_id: str
    reason: str


# ---- effects: to YARN


@value
class Place:
    """Allocate a container for an ask, on this node with these GPUs."""

    directive_id: str
    ask: Ask
    node_id: str
    gpus: tuple[Gpu, ...]
    lease_id: str


@value
class Preempt:
    """Announce the container's end at the deadline (YARN's PreemptionMessage)."""

    directive_id: str
    container_id: str
    deadline_s: float


@value
class Kill:
    """End the container now."""

    directive_id: str
    container_id: str
    reason: str


# ---- effects: inside the control plane


@value
class Solve:
    """Run the policy's `decide` and report with Decided."""

    snapshot: Snapshot
    bids: Mapping[str, Bid]
    seed: int


AgentEffect = (
    SendRegistered | SendHosts | SendAskRho | SendOffer | SendGrant | SendRevoke | SendUseReply | SendFinish
)  # fmt: skip
Directive = Place | Preempt | Kill
Effect = AgentEffect | Directive | Solve
