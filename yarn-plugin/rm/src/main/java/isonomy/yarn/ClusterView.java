package isonomy.yarn;

import isonomy.wire.v1.Application;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.Snapshot;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplication;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;

/** The scheduler's state as messages of bridge.proto. */
final class ClusterView {
  private final IsonomyScheduler scheduler;
  private final DrainingContainers ending;
  private final GpuIds ids;
  /** The GPUs of each node before its decommissioning, which reduces the capacity to what is in use. */
  private final Map<NodeId, Integer> gpus = new ConcurrentHashMap<>();

  ClusterView(IsonomyScheduler scheduler, DrainingContainers ending, GpuIds ids) {
    this.scheduler = scheduler;
    this.ending = ending;
    this.ids = ids;
  }

  Node node(RMNode node) {
    Node.Builder message = Messages.node(node).putAllAttributes(scheduler.attributes(node));
    FiCaSchedulerNode scheduled = scheduler.getNode(node.getNodeID());
    if (node.getState() != NodeState.DECOMMISSIONING) {
      gpus.put(node.getNodeID(), message.getGpus());
    }
    int most = Math.max(message.getGpus(), gpus.getOrDefault(node.getNodeID(), 0));
    int untagged = 0;
    if (scheduled != null) {
      message.setPartition(scheduled.getPartition());
      ids.learn(scheduled);
      for (RMContainer container : scheduled.getCopiedListOfRunningContainers()) {
        untagged += Gpus.untagged(container) ? Gpus.of(container.getAllocatedResource()) : 0;
        most = Math.max(most, message.getDecommissioning() ? highest(container) : 0);
      }
    }
    return message.setGpus(most).setUntaggedGpus(untagged)
        .setWithheld(scheduler.withheld(node)).build();
  }

  /** One more than the container's highest GPU id; 0 without known GPUs. */
  private static int highest(RMContainer container) {
    return !Gpus.has(container) || Gpus.untagged(container) ? 0
        : Gpus.tag(container).gpuIds().stream().mapToInt(id -> id + 1).max().orElse(0);
  }

  void nodeGone(NodeId node) {
    gpus.remove(node);
  }

  /** The application; null if the scheduler does not know it. */
  Application application(ApplicationId id) {
    RMApp app = scheduler.getRMContext().getRMApps().get(id);
    SchedulerApplication<FiCaSchedulerApp> scheduled = scheduler.getSchedulerApplications().get(id);
    if (app == null || scheduled == null) {
      return null;
    }
    FiCaSchedulerApp attempt = scheduled.getCurrentAppAttempt();
    // YARN changes only the attempt's priority.
    Priority priority = attempt == null ? scheduled.getPriority() : attempt.getPriority();
    return Messages.application(app, (CSQueue) scheduled.getQueue(), priority, attempt);
  }

  /** The whole state, read under the scheduler's lock except for the asks. */
  Snapshot.Builder snapshot() {
    Managed mode = scheduler.managed;
    Snapshot.Builder snapshot = Snapshot.newBuilder()
        .setReady(scheduler.ready()).setShadow(mode.isShadow()).setMode(mode.toWire());
    if (!mode.isOn()) {
      return snapshot;  // no events follow that would keep more up to date
    }
    scheduler.underReadLock(() -> {
      for (FiCaSchedulerNode node : scheduler.getNodeTracker().getAllNodes()) {
        snapshot.addNodes(node(node.getRMNode()));
        node.getCopiedListOfRunningContainers().stream()
            .filter(c -> Gpus.has(c) && !c.completed())
            .forEach(c -> snapshot.addContainers(Messages.container(c)));
      }
      for (ApplicationId id : scheduler.getSchedulerApplications().keySet()) {
        Application app = application(id);
        if (app != null) {
          snapshot.addApplications(app);
        }
      }
      for (CSQueue queue : scheduler.getCapacitySchedulerQueueManager().getQueues().values()) {
        snapshot.addQueues(Messages.queue(queue, scheduler.getConfiguration(), scheduler.manages(queue)));
      }
    });
    return snapshot.addAllAsks(scheduler.asks.all()).addAllContainers(ending.all());
  }
}
