package isonomy.yarn;

import isonomy.wire.GpuTag;
import isonomy.wire.v1.Application;
import isonomy.wire.v1.Ask;
import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.PartitionCapacity;
import isonomy.wire.v1.Queue;
import isonomy.wire.v1.Snapshot;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BinaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeKey;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.QueueState;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.nodelabels.AttributeValue;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplication;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.LeafQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.util.resource.Resources;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The scheduler's state as messages of bridge.proto. */
final class ClusterView {
  private static final Logger LOG = LoggerFactory.getLogger(ClusterView.class);
  private static final int TOLD_MAX = 256;
  /** The most bytes of a snapshot's asks, about half of what the control plane takes at once. */
  private static final long ASKS_MAX = 48L << 20;
  private final IsonomyScheduler scheduler;
  private final DrainingContainers ending;
  private final GpuIds ids;
  /** The last message of each node. */
  private final Map<NodeId, Node> told = new ConcurrentHashMap<>();
  /** What `unasked` said last. */
  volatile Snapshot toldUnasked = Snapshot.getDefaultInstance();

  ClusterView(IsonomyScheduler scheduler, DrainingContainers ending, GpuIds ids) {
    this.scheduler = scheduler;
    this.ending = ending;
    this.ids = ids;
  }

  Node node(RMNode node) {
    Resource total = node.getTotalCapability();
    Node.Builder message = Node.newBuilder()
        .setNodeId(node.getNodeID().toString())
        .setHost(node.getHostName())
        .setRack(text(node.getRackName()))
        .setMemoryMb(total.getMemorySize())
        .setVcores(total.getVirtualCores())
        .setDecommissioning(node.getState() == NodeState.DECOMMISSIONING)
        .setWithheld(scheduler.withheld(node))
        .putAllAttributes(scheduler.attributes(node));
    FiCaSchedulerNode scheduled = scheduler.getNode(node.getNodeID());
    // Decommissioning reduces the capacity to what is in use.
    int most = Math.max(Gpus.of(total), message.getDecommissioning() ? told(node.getNodeID()).getGpus() : 0);
    int untagged = 0;
    if (scheduled != null) {
      message.setPartition(scheduled.getPartition());
      ids.learn(scheduled);
      for (RMContainer container : scheduled.getCopiedListOfRunningContainers()) {
        untagged += Gpus.untagged(container) ? Gpus.of(container.getAllocatedResource()) : 0;
        most = Math.max(most, message.getDecommissioning() ? highest(container) : 0);
      }
    }
    Node now = message.setGpus(most).setUntaggedGpus(untagged).build();
    told.put(node.getNodeID(), now);
    return now;
  }

  /** What was last said of the node; empty if nothing was. */
  Node told(NodeId node) {
    return told.getOrDefault(node, Node.getDefaultInstance());
  }

  /** One more than the container's highest GPU id; 0 without known GPUs. */
  private static int highest(RMContainer container) {
    return !Gpus.has(container) || Gpus.untagged(container) ? 0
        : Gpus.tag(container).gpuIds().stream().mapToInt(id -> id + 1).max().orElse(0);
  }

  void nodeGone(NodeId node) {
    told.remove(node);
  }

  /** What YARN changes without telling schedulers: the queues, and the newest node of each host that is not there. */
  Snapshot unasked() {
    Snapshot.Builder unasked = Snapshot.newBuilder();
    RMContext rm = scheduler.getRMContext();
    Set<String> excluded = rm.getNodesListManager().getHostsReader().getExcludedHosts();
    Map<String, RMNode> newest = Stream.of(rm.getRMNodes(), rm.getInactiveRMNodes())
        .flatMap(nodes -> nodes.values().stream())
        .filter(n -> n.getState() == NodeState.UNHEALTHY || n.getState().isInactiveState())
        .filter(n -> scheduler.getNode(n.getNodeID()) == null)
        .collect(Collectors.toMap(RMNode::getHostName, n -> n,
            BinaryOperator.maxBy(Comparator.comparing(RMNode::getLastHealthReportTime))));
    newest.forEach((host, n) -> unasked.addDownBuilder().setNodeId(n.getNodeID().toString())
        .setReason((excluded.contains(host) ? NodeState.DECOMMISSIONED : n.getState()).name()));
    scheduler.underReadLock(() -> scheduler.getCapacitySchedulerQueueManager().getQueues().values()
        .forEach(queue -> unasked.addQueues(queue(queue))));
    toldUnasked = unasked.build();
    return toldUnasked;
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
    boolean running = attempt != null && !attempt.isStopped();
    return Application.newBuilder()
        .setAppId(id.toString())
        .setUser(told(app.getUser()))
        .setQueue(((CSQueue) scheduled.getQueue()).getQueuePath())
        .setName(told(app.getName()))
        .setApplicationType(told(app.getApplicationType()))
        .setSubmitTimeMs(app.getSubmitTime())
        .addAllTags(app.getApplicationTags())
        .setAttemptId(running ? attempt.getApplicationAttemptId().toString() : "")
        .setPriority(priority == null ? 0 : priority.getPriority())
        .build();
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
            .forEach(c -> snapshot.addContainers(container(c)));
      }
      for (ApplicationId id : scheduler.getSchedulerApplications().keySet()) {
        Application app = application(id);
        if (app != null) {
          snapshot.addApplications(app);
        }
      }
      snapshot.mergeFrom(unasked());
    });
    Map<String, String> users = new HashMap<>();
    snapshot.getApplicationsList().forEach(app -> users.put(app.getAppId(), app.getUser()));
    Map<String, List<Ask>> byUser = scheduler.asks.all().stream().map(scheduler::told)
        .collect(Collectors.groupingBy(ask -> users.getOrDefault(ask.getAppId(), "")));
    fit(byUser, ASKS_MAX);
    byUser.values().forEach(snapshot::addAllAsks);
    return snapshot.addAllContainers(ending.all());
  }

  /** Leaves out the asks of the users who have the most bytes of them, until so many are left. */
  static void fit(Map<String, List<Ask>> byUser, long bytesMax) {
    Map<String, Long> bytes = new HashMap<>();
    byUser.forEach((user, asks) -> bytes.put(user, asks.stream().mapToLong(Ask::getSerializedSize).sum()));
    while (bytes.values().stream().mapToLong(size -> size).sum() > bytesMax) {
      String user = Collections.max(bytes.entrySet(), Map.Entry.comparingByValue()).getKey();
      LOG.warn("The asks of user {} are left out of the snapshot: they have {} bytes", user, bytes.remove(user));
      byUser.remove(user);
    }
  }

  // ---- single messages

  /** `attributes`: the host's, with present values (a map's key may still contain the original value). */
  static Map<String, String> attributes(Map<NodeAttribute, AttributeValue> attributes) {
    Map<String, String> values = new HashMap<>();
    attributes.forEach((attribute, value) -> {
      NodeAttributeKey key = attribute.getAttributeKey();
      values.put(key.getAttributePrefix() + "/" + key.getAttributeName(), text(value.getValue()));
    });
    return values;
  }

  private Queue queue(CSQueue queue) {
    Configuration conf = scheduler.getConfiguration();
    boolean leaf = queue.getChildQueues() == null;
    Queue.Builder message = Queue.newBuilder()
        .setPath(queue.getQueuePath())
        .setAbsoluteCapacity(queue.getAbsoluteCapacity())
        .setAbsoluteMaxCapacity(queue.getAbsoluteMaximumCapacity())
        .setParent(!leaf)
        .setDefaultPartition(text(queue.getDefaultNodeLabelExpression()))
        .setStopped(queue.getState() != QueueState.RUNNING)
        .setUnmanaged(leaf && !scheduler.manages(queue));
    if (leaf) {
      String prefix = "yarn.scheduler.capacity.";
      String least = "minimum-user-limit-percent";
      message.setUserLimit(conf.getFloat(
          prefix + queue.getQueuePath() + "." + least, conf.getFloat(prefix + least, 100f)) / 100.0);
      message.setUserLimitFactor(queue instanceof LeafQueue ? ((LeafQueue) queue).getUserLimitFactor() : -1);
    }
    for (String partition : queue.getQueueCapacities().getExistingNodeLabels()) {
      message.putPartitions(partition, partition(queue, partition));
    }
    return message.build();
  }

  private static PartitionCapacity partition(CSQueue queue, String partition) {
    PartitionCapacity.Builder message = PartitionCapacity.newBuilder()
        .setAbsoluteCapacity(queue.getQueueCapacities().getAbsoluteCapacity(partition))
        .setAbsoluteMaxCapacity(queue.getQueueCapacities().getAbsoluteMaximumCapacity(partition));
    Resource least = queue.getQueueResourceQuotas().getConfiguredMinResource(partition);
    Resource most = queue.getQueueResourceQuotas().getConfiguredMaxResource(partition);
    if (least != null && !least.equals(Resources.none())) {
      message.setGpus(Gpus.of(least));
    }
    if (most != null && !most.equals(Resources.none())) {
      message.setMaxGpus(Gpus.of(most));
    }
    return message.build();
  }

  static GpuContainer container(RMContainer container) {
    GpuTag tag = Gpus.tag(container);
    return GpuContainer.newBuilder()
        .setContainerId(container.getContainerId().toString())
        .setAttemptId(container.getContainerId().getApplicationAttemptId().toString())
        .setAppId(container.getContainerId().getApplicationAttemptId().getApplicationId().toString())
        .setNodeId(container.getAllocatedNode().toString())
        .addAllGpuIds(tag == null ? List.of() : tag.gpuIds())
        .setLeaseId(tag == null ? "" : tag.lease())
        .setAllocationRequestId(container.getContainer().getAllocationRequestId())
        .setState(container.getState().name())
        .setGpus(Gpus.of(container.getAllocatedResource()))
        .build();
  }

  static ContainerCompleted completed(GpuContainer container, ContainerStatus status) {
    return ContainerCompleted.newBuilder()
        .setContainerId(container.getContainerId())
        .setAppId(container.getAppId())
        .setNodeId(container.getNodeId())
        .setExitStatus(status == null ? 0 : status.getExitStatus())
        .build();
  }

  private static String text(String value) {
    return value == null ? "" : value;
  }

  /** As much of a name as is told: its user may have made it as long as it goes. */
  static String told(String name) {
    return text(name).substring(0, Math.min(TOLD_MAX, text(name).length()));
  }
}
