package isonomy.yarn;

import isonomy.wire.v1.AppRemoved;
import isonomy.wire.v1.AttemptAdded;
import isonomy.wire.v1.AttemptRemoved;
import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.NodeDown;
import isonomy.wire.v1.Snapshot;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.ToIntFunction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.ContainerState;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.records.UpdateContainerRequest;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.api.protocolrecords.NMContainerStatus;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerEventType;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.Allocation;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ContainerUpdates;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplication;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.AbstractLeafQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppAttemptAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppAttemptRemovedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppRemovedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeAttributesUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeRemovedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeResourceUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEvent;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * CapacityScheduler without a say over GPUs: asks with GPUs are held back and told to the control plane, which
 * answers with the node and the GPU ids of each container. All else flows through the queues as ever.
 *
 * <p>An AM that asks for GPUs in its own container is held back too: no container has a GPU without a lease. With
 * `isonomy.scheduler.bypass` this is plain CapacityScheduler.
 */
public class IsonomyScheduler extends CapacityScheduler implements Bridge.Cluster {
  private static final Logger LOG = LoggerFactory.getLogger(IsonomyScheduler.class);

  private final AskBook asks = new AskBook(ask -> emit(Event.newBuilder().setAsk(ask)));
  private final EndingContainers ending =
      new EndingContainers(end -> emit(Event.newBuilder().setContainerCompleted(end)));
  private final Directives directives = new Directives(this, asks, ending);
  /** Null with bypass and before start. */
  private volatile Bridge bridge;

  private volatile boolean bypass;

  // ---- life

  @Override
  public void serviceInit(Configuration conf) throws Exception {
    bypass = conf.getBoolean(BridgeConfig.BYPASS, false);
    super.serviceInit(conf);
    if (!bypass && !ResourceUtils.getResourceTypes().containsKey(Gpus.RESOURCE)) {
      throw new YarnException("resource-types.xml: yarn.resource-types must name " + Gpus.RESOURCE
          + " (or set " + BridgeConfig.BYPASS + " in yarn-site.xml)");
    }
  }

  @Override
  public void serviceStart() throws Exception {
    super.serviceStart();
    if (bypass) {
      LOG.info("{} is set: this is plain CapacityScheduler", BridgeConfig.BYPASS);
      return;
    }
    BridgeConfig config = BridgeConfig.of(getConfig());
    bridge = new Bridge(this, links(config), config.queueSize());
    bridge.start();
  }

  @Override
  public void serviceStop() throws Exception {
    if (bridge != null) {
      bridge.close();
    }
    super.serviceStop();
  }

  /** The ways to the control plane. */
  Bridge.Links links(BridgeConfig config) {
    return Bridge.Links.py4j(config);
  }

  /** Null with bypass and before start. */
  Bridge bridge() {
    return bridge;
  }

  boolean bypassed() {
    return bypass;
  }

  /** While there is no bridge nobody listens: the first snapshot tells everything. */
  private void emit(Event.Builder event) {
    Bridge to = bridge;
    if (to != null) {
      to.emit(event);
    }
  }

  @Override
  public void reinitialize(Configuration conf, RMContext context) throws IOException {
    super.reinitialize(conf, context);
    if (bridge != null) {
      bridge.resend();
    }
  }

  // ---- asks

  @Override
  public Allocation allocate(
      ApplicationAttemptId id,
      List<ResourceRequest> ask,
      List<SchedulingRequest> constrained,
      List<ContainerId> release,
      List<String> blacklistAdditions,
      List<String> blacklistRemovals,
      ContainerUpdates updates) {
    if (bypass) {
      return super.allocate(id, ask, constrained, release, blacklistAdditions, blacklistRemovals, updates);
    }
    List<ResourceRequest> others = new ArrayList<>();
    List<ResourceRequest> held = new ArrayList<>();
    for (ResourceRequest r : ask) {
      (Gpus.of(r.getCapability()) > 0 ? held : others).add(r);
    }
    List<SchedulingRequest> otherConstrained = constrained == null ? null : new ArrayList<>();
    List<SchedulingRequest> heldConstrained = new ArrayList<>();
    for (SchedulingRequest r : constrained == null ? List.<SchedulingRequest>of() : constrained) {
      (Gpus.of(r.getResourceSizing().getResources()) > 0 ? heldConstrained : otherConstrained).add(r);
    }
    if (!held.isEmpty() || !heldConstrained.isEmpty()) {
      hold(id, held, heldConstrained);
    }
    refuseGpuUpdates(updates);
    return super.allocate(id, others, otherConstrained, release, blacklistAdditions, blacklistRemovals, updates);
  }

  private void hold(ApplicationAttemptId id, List<ResourceRequest> held, List<SchedulingRequest> constrained) {
    FiCaSchedulerApp app = getApplicationAttempt(id);
    if (app == null || app.isStopped() || !app.getApplicationAttemptId().equals(id)) {
      return;
    }
    normalizeResourceRequests(held);
    ToIntFunction<AskBook.Key> notPulled = key -> (int) app.getLiveContainers().stream()
        .filter(c -> c.getState() == RMContainerState.ALLOCATED && isGpuContainer(c) && key(c).equals(key))
        .count();
    asks.ask(id, held, constrained, notPulled);
  }

  /** The GPUs of a running container are its lease: they cannot be changed. */
  private void refuseGpuUpdates(ContainerUpdates updates) {
    for (List<UpdateContainerRequest> requests :
        List.of(updates.getIncreaseRequests(), updates.getDecreaseRequests())) {
      requests.removeIf(r -> {
        RMContainer container = getRMContainer(r.getContainerId());
        boolean refused = container != null
            && Gpus.of(r.getCapability()) != Gpus.of(container.getAllocatedResource());
        if (refused) {
          LOG.warn("{} asked to change its number of GPUs, which is not possible", r.getContainerId());
        }
        return refused;
      });
    }
  }

  /** The placement processor's way past the asks: not for GPUs. */
  @Override
  public boolean attemptAllocationOnNode(
      SchedulerApplicationAttempt app, SchedulingRequest request, SchedulerNode node) {
    if (!bypass && Gpus.of(request.getResourceSizing().getResources()) > 0) {
      LOG.warn("{} asks for GPUs through the placement processor, which is not possible; set"
          + " yarn.resourcemanager.placement-constraints.handler to scheduler", app.getApplicationAttemptId());
      return false;
    }
    return super.attemptAllocationOnNode(app, request, node);
  }

  // ---- events

  @Override
  public void handle(SchedulerEvent event) {
    if (bypass) {
      super.handle(event);
      return;
    }
    if (event instanceof NodeAddedSchedulerEvent) {
      // Nothing is placed on a node between its registration and the recovery of its containers.
      writeLock.lock();
      try {
        super.handle(event);
      } finally {
        writeLock.unlock();
      }
    } else {
      super.handle(event);
    }
    tell(event);
  }

  private void tell(SchedulerEvent event) {
    if (event instanceof NodeUpdateSchedulerEvent e) {
      ending.heartbeat(e.getRMNode().getNodeID().toString(), System.currentTimeMillis());
    } else if (event instanceof NodeAddedSchedulerEvent e) {
      tellNode(e.getAddedRMNode());
      tellRecovered(e);
    } else if (event instanceof NodeResourceUpdateSchedulerEvent e) {
      tellNode(e.getRMNode());
    } else if (event instanceof NodeAttributesUpdateSchedulerEvent e) {
      getAllNodes().stream().map(FiCaSchedulerNode::getRMNode)
          .filter(node -> e.getUpdatedNodeToAttributes().containsKey(node.getHostName()))
          .forEach(this::tellNode);
    } else if (event instanceof NodeRemovedSchedulerEvent e) {
      RMNode node = e.getRemovedRMNode();
      emit(Event.newBuilder().setNodeDown(NodeDown.newBuilder()
          .setNodeId(node.getNodeID().toString()).setReason(node.getState().name())));
      ending.nodeGone(node.getNodeID().toString());
    } else if (event instanceof AppAddedSchedulerEvent e) {
      tellApplication(e.getApplicationId());
    } else if (event instanceof AppRemovedSchedulerEvent e) {
      emit(Event.newBuilder().setAppRemoved(AppRemoved.newBuilder()
          .setAppId(e.getApplicationID().toString()).setFinalState(finalState(e))));
    } else if (event instanceof AppAttemptAddedSchedulerEvent e) {
      ApplicationAttemptId id = e.getApplicationAttemptId();
      asks.open(id);
      emit(Event.newBuilder().setAttemptAdded(AttemptAdded.newBuilder()
          .setAttemptId(id.toString()).setAppId(id.getApplicationId().toString())));
    } else if (event instanceof AppAttemptRemovedSchedulerEvent e) {
      ApplicationAttemptId id = e.getApplicationAttemptID();
      asks.close(id);
      emit(Event.newBuilder().setAttemptRemoved(AttemptRemoved.newBuilder()
          .setAttemptId(id.toString()).setAppId(id.getApplicationId().toString())
          .setKeepContainers(e.getKeepContainersAcrossAppAttempts())));
    }
  }

  /** YARN calls an application FINISHED that told of its failure: its own word counts, where it gave one. */
  private String finalState(AppRemovedSchedulerEvent event) {
    RMApp app = rmContext.getRMApps().get(event.getApplicationID());
    if (event.getFinalState() != RMAppState.FINISHED || app == null) {
      return String.valueOf(event.getFinalState());
    }
    FinalApplicationStatus status = app.getFinalApplicationStatus();
    return switch (status) {
      case SUCCEEDED, FAILED, KILLED -> status.name();
      default -> RMAppState.FINISHED.name();
    };
  }

  private void tellNode(RMNode node) {
    if (node.getState() == NodeState.DECOMMISSIONING) {
      // Its capacity shrinks to what is in use; the GPUs that are in use stay where they are.
      return;
    }
    emit(Event.newBuilder().setNodeUp(message(node)));
  }

  private Node message(RMNode node) {
    return Messages.node(node, rmContext.getNodeAttributesManager().getAttributesForNode(node.getHostName()));
  }

  private void tellApplication(ApplicationId id) {
    RMApp app = rmContext.getRMApps().get(id);
    SchedulerApplication<FiCaSchedulerApp> scheduled = applications.get(id);
    if (app != null && scheduled != null) {
      emit(Event.newBuilder().setAppAdded(Messages.application(
          app, (CSQueue) scheduled.getQueue(), scheduled.getCurrentAppAttempt())));
    }
  }

  @Override
  public String moveApplication(ApplicationId id, String queue) throws YarnException {
    String moved = super.moveApplication(id, queue);
    if (!bypass) {
      tellApplication(id);
    }
    return moved;
  }

  private void tellRecovered(NodeAddedSchedulerEvent event) {
    List<NMContainerStatus> reports = event.getContainerReports();
    for (NMContainerStatus report : reports == null ? List.<NMContainerStatus>of() : reports) {
      RMContainer container = getRMContainer(report.getContainerId());
      if (container == null || container.completed() || !isGpuContainer(container)) {
        continue;
      }
      asks.recovered(report.getContainerId().getApplicationAttemptId(), key(container));
      GpuContainer message = Messages.container(container);
      emit(Event.newBuilder().setContainerAllocated(message));
      if (report.getContainerState() == ContainerState.RUNNING) {
        emit(Event.newBuilder().setContainerRunning(message));
      }
    }
  }

  @Override
  protected void containerLaunchedOnNode(ContainerId id, SchedulerNode node) {
    super.containerLaunchedOnNode(id, node);
    if (bypass) {
      return;
    }
    RMContainer container = getRMContainer(id);
    if (container == null) {
      ending.started(node.getNodeID().toString(), id.toString());
    } else if (isGpuContainer(container)) {
      emit(Event.newBuilder().setContainerRunning(Messages.container(container)));
    }
  }

  @Override
  protected void completedContainerInternal(RMContainer container, ContainerStatus status, RMContainerEventType event) {
    RMContainerState before = container.getState();
    boolean told = !bypass && isGpuContainer(container) && getRMContainer(container.getContainerId()) == container;
    super.completedContainerInternal(container, status, event);
    if (told) {
      tellCompleted(container, before, status, event);
    }
  }

  private void tellCompleted(
      RMContainer container, RMContainerState before, ContainerStatus status, RMContainerEventType event) {
    GpuContainer message = Messages.container(container);
    ContainerCompleted end = Messages.completed(message, status);
    if (event == RMContainerEventType.FINISHED || before == RMContainerState.ALLOCATED) {
      emit(Event.newBuilder().setContainerCompleted(end));
    } else {
      ending.begin(message, end, before == RMContainerState.RUNNING, System.currentTimeMillis());
    }
    if (before == RMContainerState.ALLOCATED) {
      asks.restored(container.getContainerId().getApplicationAttemptId(), key(container));
    }
  }

  /** Also hears of the end of containers that are unknown by now. */
  @Override
  public void completedContainer(RMContainer container, ContainerStatus status, RMContainerEventType event) {
    super.completedContainer(container, status, event);
    if (!bypass && container == null && event == RMContainerEventType.FINISHED) {
      ending.ended(status.getContainerId().toString());
    }
  }

  private static boolean isGpuContainer(RMContainer container) {
    return container.getState() != RMContainerState.RESERVED && Gpus.of(container.getAllocatedResource()) > 0;
  }

  private static AskBook.Key key(RMContainer container) {
    Container allocated = container.getContainer();
    return new AskBook.Key(allocated.getPriority().getPriority(), allocated.getAllocationRequestId());
  }

  // ---- for the bridge

  @Override
  public boolean ready() {
    return !rmContext.isWorkPreservingRecoveryEnabled() || rmContext.isSchedulerReadyForAllocatingContainers();
  }

  @Override
  public DirectiveResult.Builder carryOut(Directive directive) {
    return directives.carryOut(directive);
  }

  @Override
  public Snapshot snapshot(long lastSeq) {
    Snapshot.Builder snapshot = Snapshot.newBuilder().setLastSeq(lastSeq).setReady(ready());
    readLock.lock();
    try {
      for (FiCaSchedulerNode node : getAllNodes()) {
        if (node.getRMNode().getState() != NodeState.DECOMMISSIONING) {
          snapshot.addNodes(message(node.getRMNode()));
        }
        node.getCopiedListOfRunningContainers().stream().filter(IsonomyScheduler::isGpuContainer)
            .forEach(c -> snapshot.addContainers(Messages.container(c)));
      }
      applications.forEach((id, scheduled) -> {
        RMApp app = rmContext.getRMApps().get(id);
        if (app != null) {
          snapshot.addApplications(Messages.application(
              app, (CSQueue) scheduled.getQueue(), scheduled.getCurrentAppAttempt()));
        }
      });
      for (CSQueue queue : getCapacitySchedulerQueueManager().getQueues().values()) {
        if (queue instanceof AbstractLeafQueue) {
          snapshot.addQueues(Messages.queue(queue));
        }
      }
    } finally {
      readLock.unlock();
    }
    return snapshot.addAllAsks(asks.all()).addAllContainers(ending.all()).build();
  }

  // ---- for directives, which are carried out under the scheduler's lock

  void underWriteLock(Directives.Action action) throws Refused {
    writeLock.lock();
    try {
      action.run();
    } finally {
      writeLock.unlock();
    }
  }

  /** Allocates one container past the queues' order, but within their limits. */
  boolean allocateNow(FiCaSchedulerApp app, SchedulingRequest request, FiCaSchedulerNode node) {
    return super.attemptAllocationOnNode(app, request, node);
  }

  FiCaSchedulerNode node(String nodeId) {
    return getNode(NodeId.fromString(nodeId));
  }

  void tellAllocated(RMContainer container) {
    emit(Event.newBuilder().setContainerAllocated(Messages.container(container)));
  }
}
