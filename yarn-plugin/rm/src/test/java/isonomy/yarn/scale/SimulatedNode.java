package isonomy.yarn.scale;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerState;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.api.ResourceTracker;
import org.apache.hadoop.yarn.server.api.protocolrecords.NMContainerStatus;
import org.apache.hadoop.yarn.server.api.protocolrecords.NodeHeartbeatRequest;
import org.apache.hadoop.yarn.server.api.protocolrecords.NodeHeartbeatResponse;
import org.apache.hadoop.yarn.server.api.protocolrecords.RegisterNodeManagerRequest;
import org.apache.hadoop.yarn.server.api.protocolrecords.RegisterNodeManagerResponse;
import org.apache.hadoop.yarn.server.api.records.MasterKey;
import org.apache.hadoop.yarn.server.api.records.NodeHealthStatus;
import org.apache.hadoop.yarn.server.api.records.NodeStatus;

/** A NodeManager without processes: it speaks YARN's ResourceTracker protocol, and what it is told to run runs. */
public class SimulatedNode {
  public final NodeId id;
  private final ResourceTracker tracker;
  private final Resource size;
  private final Set<ContainerId> running = ConcurrentHashMap.newKeySet();
  private final List<ContainerId> ended = new ArrayList<>();
  private MasterKey containerKey;
  private MasterKey nmKey;
  private int responseId;

  /** Host names are addresses: names that DNS does not know would make the ResourceManager wait for it. */
  public SimulatedNode(ResourceTracker tracker, int number, Resource size) {
    this.tracker = tracker;
    this.size = size;
    id = NodeId.newInstance("10." + (number >> 16 & 255) + "." + (number >> 8 & 255) + "." + (number & 255), 45454);
  }

  /** What it reports of itself, or null. */
  protected Set<NodeAttribute> attributes() {
    return null;
  }

  void register() throws Exception {
    register(List.of());
  }

  /** `apps`: those that have containers here. */
  public synchronized void register(List<ApplicationId> apps) throws Exception {
    List<NMContainerStatus> reports = new ArrayList<>();
    running.forEach(c -> reports.add(NMContainerStatus.newInstance(
        c, 0, ContainerState.RUNNING, Resource.newInstance(128, 1), "", -1000, Priority.newInstance(1), 0)));
    RegisterNodeManagerRequest request = RegisterNodeManagerRequest.newInstance(id, 8042, size, "3.5.0", reports, apps);
    request.setNodeAttributes(attributes());
    RegisterNodeManagerResponse response = tracker.registerNodeManager(request);
    responseId = 0;
    containerKey = response.getContainerTokenMasterKey();
    nmKey = response.getNMTokenMasterKey();
  }

  /** An application master starts a container here. */
  public void start(ContainerId container) {
    running.add(container);
  }

  /** A container's processes have ended. */
  public synchronized void end(ContainerId container) {
    if (running.remove(container)) {
      ended.add(container);
    }
  }

  /** The ResourceManager ends a container. */
  protected void stop(ContainerId container) {
    end(container);
  }

  int containers() {
    return running.size();
  }

  public synchronized void heartbeat() throws Exception {
    List<ContainerStatus> statuses = new ArrayList<>();
    running.forEach(c -> statuses.add(ContainerStatus.newInstance(c, ContainerState.RUNNING, "", -1000)));
    ended.forEach(c -> statuses.add(ContainerStatus.newInstance(c, ContainerState.COMPLETE, "", 0)));
    ended.clear();
    NodeStatus status = NodeStatus.newInstance(id, responseId, statuses, List.of(),
        NodeHealthStatus.newInstance(true, "", System.currentTimeMillis()), null, null, null);
    NodeHeartbeatRequest request = NodeHeartbeatRequest.newInstance(status, containerKey, nmKey, Set.of(), Map.of());
    request.setNodeAttributes(attributes());
    NodeHeartbeatResponse response = tracker.nodeHeartbeat(request);
    responseId = response.getResponseId();
    if (response.getContainerTokenMasterKey() != null) {
      containerKey = response.getContainerTokenMasterKey();
    }
    if (response.getNMTokenMasterKey() != null) {
      nmKey = response.getNMTokenMasterKey();
    }
    response.getContainersToCleanup().forEach(this::stop);
  }
}
