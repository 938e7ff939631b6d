package isonomy.yarn;

import isonomy.wire.GpuTag;
import isonomy.wire.v1.Application;
import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.PartitionCapacity;
import isonomy.wire.v1.Queue;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeKey;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.QueueState;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.nodelabels.AttributeValue;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.LeafQueue;
import org.apache.hadoop.yarn.util.resource.Resources;

/** Converts YARN's objects to messages of bridge.proto. */
final class Messages {
  private Messages() {}

  static Node.Builder node(RMNode node) {
    Resource total = node.getTotalCapability();
    return Node.newBuilder()
        .setNodeId(node.getNodeID().toString())
        .setHost(node.getHostName())
        .setRack(text(node.getRackName()))
        .setGpus(Gpus.of(total))
        .setMemoryMb(total.getMemorySize())
        .setVcores(total.getVirtualCores())
        .setDecommissioning(node.getState() == NodeState.DECOMMISSIONING);
  }

  /** `attributes`: the host's, with present values (a map's key may still contain the original value). */
  static Map<String, String> attributes(Map<NodeAttribute, AttributeValue> attributes) {
    Map<String, String> values = new HashMap<>();
    attributes.forEach((attribute, value) -> {
      NodeAttributeKey key = attribute.getAttributeKey();
      values.put(key.getAttributePrefix() + "/" + key.getAttributeName(), text(value.getValue()));
    });
    return values;
  }

  /** `attempt`: the running one, or null. */
  static Application application(
      RMApp app, CSQueue queue, Priority priority, SchedulerApplicationAttempt attempt) {
    boolean running = attempt != null && !attempt.isStopped();
    return Application.newBuilder()
        .setAppId(app.getApplicationId().toString())
        .setUser(text(app.getUser()))
        .setQueue(queue.getQueuePath())
        .setName(text(app.getName()))
        .setApplicationType(text(app.getApplicationType()))
        .setSubmitTimeMs(app.getSubmitTime())
        .addAllTags(app.getApplicationTags())
        .setAttemptId(running ? attempt.getApplicationAttemptId().toString() : "")
        .setTrackingUrl(text(app.getTrackingUrl()))
        .setPriority(priority == null ? 0 : priority.getPriority())
        .build();
  }

  /** `conf`: CapacityScheduler's. */
  static Queue queue(CSQueue queue, Configuration conf, boolean managed) {
    boolean leaf = queue.getChildQueues() == null;
    Queue.Builder message = Queue.newBuilder()
        .setPath(queue.getQueuePath())
        .setAbsoluteCapacity(queue.getAbsoluteCapacity())
        .setAbsoluteMaxCapacity(queue.getAbsoluteMaximumCapacity())
        .setParent(!leaf)
        .setDefaultPartition(text(queue.getDefaultNodeLabelExpression()))
        .setStopped(queue.getState() != QueueState.RUNNING)
        .setUnmanaged(leaf && !managed);
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
        .setDiagnostics(status == null ? "" : text(status.getDiagnostics()))
        .build();
  }

  private static String text(String value) {
    return value == null ? "" : value;
  }
}
