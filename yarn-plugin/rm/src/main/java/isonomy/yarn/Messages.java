package isonomy.yarn;

import isonomy.wire.v1.Application;
import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.Queue;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeKey;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.nodelabels.AttributeValue;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;

/** YARN's objects as messages of bridge.proto. */
final class Messages {
  private Messages() {}

  /** `attributes`: of its host, with the values in force (a key may still carry the value that it was made with). */
  static Node node(RMNode node, Map<NodeAttribute, AttributeValue> attributes) {
    Resource total = node.getTotalCapability();
    Node.Builder message = Node.newBuilder()
        .setNodeId(node.getNodeID().toString())
        .setHost(node.getHostName())
        .setRack(text(node.getRackName()))
        .setGpus(Gpus.of(total))
        .setMemoryMb(total.getMemorySize())
        .setVcores(total.getVirtualCores());
    attributes.forEach((attribute, value) -> {
      NodeAttributeKey key = attribute.getAttributeKey();
      message.putAttributes(key.getAttributePrefix() + "/" + key.getAttributeName(), text(value.getValue()));
    });
    return message.build();
  }

  /** `attempt`: the running one, or null. */
  static Application application(RMApp app, CSQueue queue, SchedulerApplicationAttempt attempt) {
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
        .build();
  }

  static Queue queue(CSQueue queue) {
    return Queue.newBuilder()
        .setPath(queue.getQueuePath())
        .setAbsoluteCapacity(queue.getAbsoluteCapacity())
        .setAbsoluteMaxCapacity(queue.getAbsoluteMaximumCapacity())
        .build();
  }

  static GpuContainer container(RMContainer container) {
    return GpuContainer.newBuilder()
        .setContainerId(container.getContainerId().toString())
        .setAttemptId(container.getContainerId().getApplicationAttemptId().toString())
        .setAppId(container.getContainerId().getApplicationAttemptId().getApplicationId().toString())
        .setNodeId(container.getAllocatedNode().toString())
        .addAllGpuIds(Gpus.ids(container.getAllocationTags()))
        .setLeaseId(Gpus.lease(container.getAllocationTags()))
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
