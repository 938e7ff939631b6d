package isonomy.yarn;

import isonomy.wire.v1.AppRemoved;
import isonomy.wire.v1.Application;
import isonomy.wire.v1.AttemptAdded;
import isonomy.wire.v1.AttemptRemoved;
import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.NodeDown;
import isonomy.wire.v1.Snapshot;
import java.util.List;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.stream.Collectors;
import org.apache.hadoop.util.Time;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerState;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.server.api.protocolrecords.NMContainerStatus;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerEventType;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppAttemptAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppAttemptRemovedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.AppRemovedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeAttributesUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeLabelsUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeRemovedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeResourceUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEvent;

/** Reports the events that the scheduler has handled to the control plane. */
final class SchedulerEvents {
  private static final long LOOK_MS = 5_000;
  private final IsonomyScheduler scheduler;
  private final ClusterView view;
  private final AskBook asks;
  private final DrainingContainers ending;
  private long lookedMs;

  SchedulerEvents(IsonomyScheduler scheduler, ClusterView view, AskBook asks, DrainingContainers ending) {
    this.scheduler = scheduler;
    this.view = view;
    this.asks = asks;
    this.ending = ending;
  }

  void publish(SchedulerEvent event) {
    switch (event.getType()) {
      case NODE_UPDATE:
        heartbeat(((NodeUpdateSchedulerEvent) event).getRMNode());
        break;
      case NODE_ADDED:
        node(((NodeAddedSchedulerEvent) event).getAddedRMNode());
        recovered((NodeAddedSchedulerEvent) event);
        break;
      case NODE_RESOURCE_UPDATE:
        node(((NodeResourceUpdateSchedulerEvent) event).getRMNode());
        break;
      case NODE_ATTRIBUTES_UPDATE:
        nodesOf(((NodeAttributesUpdateSchedulerEvent) event).getUpdatedNodeToAttributes().keySet());
        break;
      case NODE_LABELS_UPDATE:
        nodesOf(((NodeLabelsUpdateSchedulerEvent) event).getUpdatedNodeToLabels().keySet().stream()
            .map(NodeId::getHost).collect(Collectors.toSet()));
        break;
      case NODE_REMOVED:
        nodeRemoved(((NodeRemovedSchedulerEvent) event).getRemovedRMNode());
        break;
      case APP_ADDED:
        application(((AppAddedSchedulerEvent) event).getApplicationId(), Event.Builder::setAppAdded);
        break;
      case APP_REMOVED:
        appRemoved((AppRemovedSchedulerEvent) event);
        break;
      case APP_ATTEMPT_ADDED:
        attemptAdded(((AppAttemptAddedSchedulerEvent) event).getApplicationAttemptId());
        break;
      case APP_ATTEMPT_REMOVED:
        attemptRemoved((AppAttemptRemovedSchedulerEvent) event);
        break;
      default:
        break;
    }
  }

  // ---- nodes

  private void heartbeat(RMNode node) {
    if ((node.getState() == NodeState.DECOMMISSIONING) != view.told(node.getNodeID()).getDecommissioning()) {
      node(node);
    }
    if (!ending.isEmpty()) {
      ending.heartbeat(node.getNodeID().toString(), System.currentTimeMillis());
    }
    long nowMs = Time.monotonicNow();
    if (nowMs - lookedMs >= LOOK_MS) {
      lookedMs = nowMs;
      look();
    }
  }

  /** Tells the queues and the nodes that are not there, if they changed. */
  private void look() {
    Snapshot before = view.toldUnasked;
    Snapshot now = view.unasked();
    if (!now.equals(before)) {
      scheduler.emit(() -> Event.newBuilder().setUnasked(now));
    }
  }

  void node(RMNode node) {
    scheduler.emit(() -> Event.newBuilder().setNodeUp(view.node(node)));
  }

  private void nodesOf(Set<String> hosts) {
    for (FiCaSchedulerNode node : scheduler.getNodeTracker().getAllNodes()) {
      if (hosts.contains(node.getNodeID().getHost())) {
        node(node.getRMNode());
      }
    }
  }

  private void nodeRemoved(RMNode node) {
    NodeId id = node.getNodeID();
    scheduler.emit(() -> Event.newBuilder().setNodeDown(
        NodeDown.newBuilder().setNodeId(id.toString()).setReason(node.getState().name())));
    view.nodeGone(id);
    ending.nodeGone(id.toString());
  }

  private void recovered(NodeAddedSchedulerEvent event) {
    List<NMContainerStatus> reports = event.getContainerReports();
    for (NMContainerStatus report : reports == null ? List.<NMContainerStatus>of() : reports) {
      RMContainer container = scheduler.getRMContainer(report.getContainerId());
      if (container == null || container.completed() || !Gpus.has(container)) {
        continue;
      }
      asks.recovered(report.getContainerId().getApplicationAttemptId(), Gpus.key(container));
      allocated(container);
      if (report.getContainerState() == ContainerState.RUNNING) {
        running(container);
      }
    }
  }

  // ---- applications

  /** Its queue or its priority changed. */
  void updated(ApplicationId id) {
    application(id, Event.Builder::setAppUpdated);
  }

  private void application(ApplicationId id, BiFunction<Event.Builder, Application, Event.Builder> put) {
    scheduler.emit(() -> {
      Application app = view.application(id);
      if (app != null && scheduler.ready()  // while it recovers, all its apps come at once
          && view.toldUnasked.getQueuesList().stream().noneMatch(q -> q.getPath().equals(app.getQueue()))) {
        look();
      }
      return app == null ? null : put.apply(Event.newBuilder(), app);
    });
  }

  private void appRemoved(AppRemovedSchedulerEvent event) {
    scheduler.emit(() -> Event.newBuilder().setAppRemoved(AppRemoved.newBuilder()
        .setAppId(event.getApplicationID().toString()).setFinalState(finalState(event))));
  }

  /** The final state: the application's own report if it made one, for YARN says FINISHED even after a failure. */
  private String finalState(AppRemovedSchedulerEvent event) {
    RMApp app = scheduler.getRMContext().getRMApps().get(event.getApplicationID());
    if (event.getFinalState() != RMAppState.FINISHED || app == null) {
      return String.valueOf(event.getFinalState());
    }
    FinalApplicationStatus status = app.getFinalApplicationStatus();
    return status == null || status == FinalApplicationStatus.UNDEFINED ? RMAppState.FINISHED.name() : status.name();
  }

  private void attemptAdded(ApplicationAttemptId id) {
    scheduler.underReadLock(() -> asks.open(id, scheduler.pendingOf(id)));
    scheduler.emit(() -> Event.newBuilder().setAttemptAdded(AttemptAdded.newBuilder()
        .setAttemptId(id.toString()).setAppId(id.getApplicationId().toString())));
  }

  private void attemptRemoved(AppAttemptRemovedSchedulerEvent event) {
    ApplicationAttemptId id = event.getApplicationAttemptID();
    asks.close(id);
    scheduler.emit(() -> Event.newBuilder().setAttemptRemoved(AttemptRemoved.newBuilder()
        .setAttemptId(id.toString()).setAppId(id.getApplicationId().toString())
        .setKeepContainers(event.getKeepContainersAcrossAppAttempts())));
  }

  // ---- containers

  void allocated(RMContainer container) {
    scheduler.emit(() -> Event.newBuilder().setContainerAllocated(ClusterView.container(container)));
  }

  /** A container runs, or the GPUs of one without a lease became known. */
  void running(RMContainer container) {
    scheduler.emit(() -> Event.newBuilder().setContainerRunning(ClusterView.container(container)));
  }

  void launched(ContainerId id, SchedulerNode node) {
    RMContainer container = scheduler.getRMContainer(id);
    if (container == null) {
      ending.started(node.getNodeID().toString(), id.toString());
    } else if (Gpus.has(container)) {
      running(container);
      if (Gpus.untagged(container)) {
        node(node.getRMNode());
      }
    }
  }

  /** A container ended; `before` is its state before that. */
  void completed(RMContainer container, RMContainerState before, ContainerStatus status, RMContainerEventType event) {
    GpuContainer message = ClusterView.container(container);
    ContainerCompleted end = ClusterView.completed(message, status);
    if (event == RMContainerEventType.FINISHED || before == RMContainerState.ALLOCATED) {
      scheduler.emit(() -> Event.newBuilder().setContainerCompleted(end));
    } else {
      ending.begin(message, end, before == RMContainerState.RUNNING, System.currentTimeMillis());
    }
    if (before == RMContainerState.ALLOCATED) {
      asks.restored(container.getContainerId().getApplicationAttemptId(), Gpus.key(container));
    }
    if (Gpus.untagged(container)) {
      tellNode(container.getAllocatedNode());
    }
  }

  /** The processes of a container that YARN has ended are gone. */
  void drained(GpuContainer container, ContainerCompleted end) {
    scheduler.emit(() -> Event.newBuilder().setContainerCompleted(end));
    if (container.getGpuIdsCount() == 0) {
      tellNode(NodeId.fromString(container.getNodeId()));
    }
  }

  private void tellNode(NodeId id) {
    FiCaSchedulerNode node = scheduler.getNode(id);
    if (node != null) {
      node(node.getRMNode());
    }
  }
}
