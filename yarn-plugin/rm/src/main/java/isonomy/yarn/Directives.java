package isonomy.yarn;

import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Kill;
import isonomy.wire.v1.Place;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.ExecutionTypeRequest;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerEventType;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerAppUtils;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerUtils;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.constraint.InvalidAllocationTagsQueryException;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.constraint.PlacementConstraintsUtil;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.apache.hadoop.yarn.util.resource.Resources;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Carries out the control plane's directives, or reports why not. */
final class Directives {
  private static final Logger LOG = LoggerFactory.getLogger(Directives.class);

  /** Runs under the scheduler's write lock. */
  interface Action<E extends Exception> {
    void run() throws E;
  }

  private final IsonomyScheduler scheduler;
  private final AskBook asks;
  private final GpuIds ids;

  Directives(IsonomyScheduler scheduler, AskBook asks, GpuIds ids) {
    this.scheduler = scheduler;
    this.asks = asks;
    this.ids = ids;
  }

  DirectiveResult.Builder carryOut(Directive directive) {
    DirectiveResult.Builder result = DirectiveResult.newBuilder();
    try {
      if (!scheduler.managed.places()) {
        throw new RejectedException("the mode is " + scheduler.managed.name() + ": nothing is carried out");
      }
      switch (directive.getKindCase()) {
        case PLACE:
          scheduler.<RejectedException>underWriteLock(() -> result.setContainerId(place(directive.getPlace())));
          break;
        case PREEMPT:
          preempt(directive.getPreempt().getContainerId());
          break;
        case KILL:
          scheduler.<RejectedException>underWriteLock(() -> kill(directive.getKill()));
          break;
        default:
          throw new RejectedException("this plugin does not know such a directive");
      }
      return result.setOk(true);
    } catch (RejectedException e) {
      return result.setReason(e.getMessage()).setMachineAtFault(e.machineAtFault).setExcluded(e.excluded);
    } catch (IllegalArgumentException e) {
      return result.setReason("not readable: " + e.getMessage());
    }
  }

  // ---- place

  private String place(Place place) throws RejectedException {
    if (!scheduler.ready()) {
      throw new RejectedException("the ResourceManager is recovering");
    }
    FiCaSchedulerApp app = scheduler.running(ApplicationAttemptId.fromString(place.getAttemptId()));
    if (app == null) {
      throw new RejectedException("attempt " + place.getAttemptId() + " is not running");
    }
    AskBook.Entry ask = ask(app, place);
    FiCaSchedulerNode node = node(app, place);
    checkLimitedTo(app, ask, node);
    checkAttributes(app, ask, node);
    checkGpusFree(node, place.getGpuIdsList());

    Set<ContainerId> before = new HashSet<>();
    app.getLiveContainers().forEach(c -> before.add(c.getContainerId()));
    if (!scheduler.allocateNow(app, request(app, ask, place), node)) {
      throw new RejectedException(whyNot(app, ask, node));
    }
    RMContainer container = app.getLiveContainers().stream()
        .filter(c -> !before.contains(c.getContainerId()))
        .findFirst()
        .orElseThrow(() -> new RejectedException("the container ended at once"));
    asks.placed(app.getApplicationAttemptId(), ask.key);
    scheduler.events.allocated(container);
    LOG.info("Placed {} on {} with GPUs {} of lease {}",
        container.getContainerId(), place.getNodeId(), place.getGpuIdsList(), place.getLeaseId());
    return container.getContainerId().toString();
  }

  private AskBook.Entry ask(FiCaSchedulerApp app, Place place) throws RejectedException {
    SchedulerRequestKey key =
        new SchedulerRequestKey(Priority.newInstance(place.getPriority()), place.getAllocationRequestId(), null);
    AskBook.Entry ask = asks.find(app.getApplicationAttemptId(), key);
    if (ask == null) {
      throw new RejectedException("attempt " + place.getAttemptId() + " does not ask under allocationRequestId "
          + place.getAllocationRequestId() + " and priority " + place.getPriority() + " (any more)");
    }
    Resource asked = ask.capability;
    if (Gpus.of(asked) != place.getGpuIdsCount() || asked.getMemorySize() != place.getMemoryMb()
        || asked.getVirtualCores() != place.getVcores()) {
      throw new RejectedException("the ask has changed to " + asked);
    }
    return ask;
  }

  private FiCaSchedulerNode node(FiCaSchedulerApp app, Place place) throws RejectedException {
    FiCaSchedulerNode node = scheduler.getNode(NodeId.fromString(place.getNodeId()));
    if (node == null) {
      throw RejectedException.ofMachine("node " + place.getNodeId() + " is not registered");
    }
    NodeState state = node.getRMNode().getState();
    if (state != NodeState.RUNNING) {
      throw RejectedException.ofMachine("node " + place.getNodeId() + " is " + state);
    }
    String withheld = scheduler.withheld(node.getRMNode());
    if (!withheld.isEmpty()) {
      throw RejectedException.ofMachine("node " + place.getNodeId() + ": " + withheld);
    }
    if (SchedulerAppUtils.isPlaceBlacklisted(app, node, LOG)) {
      throw RejectedException.excluded("the application has blacklisted " + node.getNodeName());
    }
    return node;
  }

  /** Refuses a second container on a GPU, even if the control plane asks for it. */
  private void checkGpusFree(FiCaSchedulerNode node, List<Integer> gpuIds) throws RejectedException {
    int gpus = Gpus.of(node.getTotalResource());
    if (gpuIds.isEmpty() || new HashSet<>(gpuIds).size() < gpuIds.size()
        || gpuIds.stream().anyMatch(id -> id < 0 || id >= gpus)) {
      throw RejectedException.ofMachine("node " + node.getNodeID() + " has GPUs 0 to " + (gpus - 1) + ", not " + gpuIds);
    }
    Map<Integer, String> held = ids.held(node);
    for (Integer id : gpuIds) {
      if (held.containsKey(id)) {
        throw RejectedException.ofMachine("GPU " + id + " is in use: " + held.get(id));
      }
    }
  }

  /** Checks, as CapacityScheduler would, the ask's partition, the queue's access to it, and its hosts and racks. */
  private static void checkLimitedTo(FiCaSchedulerApp app, AskBook.Entry ask, FiCaSchedulerNode node) throws RejectedException {
    if (!ask.partition().equals(node.getPartition())) {
      throw new RejectedException("the ask is for " + partition(ask.partition()) + ", node " + node.getNodeID() + " is in "
          + partition(node.getPartition()));
    }
    Set<String> open = app.getQueue().getAccessibleNodeLabels();
    if (!ask.partition().isEmpty() && (open == null
        || !open.contains(ask.partition()) && !open.contains(RMNodeLabelsManager.ANY))) {
      throw new RejectedException("queue " + app.getQueueName() + " may not use " + partition(ask.partition()));
    }
    if (!ask.onlyOn.isEmpty() && !ask.onlyOn.contains(node.getNodeName()) && !ask.onlyOn.contains(node.getRackName())) {
      throw new RejectedException("the ask is limited to " + ClusterView.told(ask.onlyOn.toString())
          + ", which node " + node.getNodeID() + " is not on");
    }
  }

  private void checkAttributes(FiCaSchedulerApp app, AskBook.Entry ask, FiCaSchedulerNode node)
      throws RejectedException {
    RMContext rm = scheduler.getRMContext();
    try {
      for (PlacementConstraint one : AskBook.onAttributes(ask.original)) {
        SchedulingRequest alone = SchedulingRequest.newBuilder().placementConstraintExpression(one).build();
        if (!PlacementConstraintsUtil.canSatisfyConstraints(app.getApplicationId(), alone, node,
            rm.getPlacementConstraintManager(), rm.getAllocationTagsManager())) {
          throw RejectedException.excluded("node " + node.getNodeID() + " does not meet the ask's placement constraint");
        }
      }
    } catch (InvalidAllocationTagsQueryException e) {
      throw new RejectedException("the ask's placement constraint: " + e.getMessage());
    }
  }

  private static String partition(String name) {
    return name.isEmpty() ? "the default partition" : "partition " + name;
  }

  private SchedulingRequest request(FiCaSchedulerApp app, AskBook.Entry ask, Place place) {
    PlacementConstraint constraint = null;
    SchedulingRequest original = ask.original;
    Set<String> tags = Gpus.tags(place.getGpuIdsList(), place.getLeaseId(), original);
    if (original != null) {
      constraint = scheduler.getRMContext().getPlacementConstraintManager().getMultilevelConstraint(
          app.getApplicationId(), original.getAllocationTags(), original.getPlacementConstraint());
    }
    return SchedulingRequest.newBuilder()
        .priority(Priority.newInstance(place.getPriority()))
        .allocationRequestId(place.getAllocationRequestId())
        .allocationTags(tags)
        .placementConstraintExpression(constraint)
        .executionType(ExecutionTypeRequest.newInstance(ExecutionType.GUARANTEED))
        .resourceSizing(ResourceSizing.newInstance(1, Resources.clone(ask.capability)))
        .build();
  }

  private static String whyNot(FiCaSchedulerApp app, AskBook.Entry ask, FiCaSchedulerNode node) {
    Resource free = node.getUnallocatedResource();
    if (node.getReservedContainer() != null) {
      return "node " + node.getNodeID() + " is reserved for " + node.getReservedContainer().getContainerId();
    }
    if (!Resources.fitsIn(ask.capability, free)) {
      return "node " + node.getNodeID() + " has only " + free + " free, the ask is " + ask.capability;
    }
    if (ask.original != null) {
      return "the ask's placement constraint or a limit of queue " + app.getQueueName() + " forbids it";
    }
    return "queue " + app.getQueueName() + " or user " + app.getUser() + " would exceed its limit";
  }

  // ---- preempt, kill

  private RMContainer live(String containerId) throws RejectedException {
    RMContainer container = scheduler.getRMContainer(ContainerId.fromString(containerId));
    if (container == null) {
      throw new RejectedException(containerId + " is not live");
    }
    return container;
  }

  /** Marks the container; the AM gets a PreemptionMessage with its next heartbeat. */
  private void preempt(String containerId) throws RejectedException {
    RMContainer container = live(containerId);
    scheduler.markContainerForPreemption(container.getApplicationAttemptId(), container);
  }

  /**
   * Ends the container immediately, even with lazy preemption. An application that may ask again learns ABORTED: YARN's
   * own distributed shell counts PREEMPTED as a failure.
   */
  private void kill(Kill kill) throws RejectedException {
    RMContainer container = live(kill.getContainerId());
    String diagnostics = SchedulerUtils.PREEMPTED_CONTAINER + ": " + kill.getReason();
    scheduler.completedContainer(container,
        kill.getAgain() ? SchedulerUtils.createAbnormalContainerStatus(container.getContainerId(), diagnostics)
            : SchedulerUtils.createPreemptedContainerStatus(container.getContainerId(), diagnostics),
        RMContainerEventType.KILL);
    LOG.info("Killed {}: {}", kill.getContainerId(), kill.getReason());
  }
}
