package isonomy.yarn.scale;

import java.security.PrivilegedExceptionAction;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetNewApplicationRequest;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.SubmitApplicationRequest;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttemptState;
import org.apache.hadoop.yarn.util.Records;

/** An application with an unmanaged master that asks for containers of one GPU and keeps them. */
public final class SimulatedApp {
  static final AtomicInteger ALLOCATED = new AtomicInteger();

  private final ResourceManager rm;
  private final Map<NodeId, SimulatedNode> nodes;
  private final int wanted;
  private final UserGroupInformation master;
  public final ApplicationAttemptId attempt;
  private int responseId;
  private boolean asked;

  SimulatedApp(ResourceManager rm, Map<NodeId, SimulatedNode> nodes, String user, int wanted) throws Exception {
    this(rm, nodes, user, "default", wanted);
  }

  /** `wanted`: how many containers `heartbeat` asks for. */
  public SimulatedApp(ResourceManager rm, Map<NodeId, SimulatedNode> nodes, String user, String queue, int wanted)
      throws Exception {
    this.rm = rm;
    this.nodes = nodes;
    this.wanted = wanted;
    ApplicationId id = submit(UserGroupInformation.createRemoteUser(user), queue);
    attempt = ApplicationAttemptId.newInstance(id, 1);
    RMAppAttempt found = launched(id, attempt);
    master = UserGroupInformation.createRemoteUser(attempt.toString());
    master.addTokenIdentifier(found.getAMRMToken().decodeIdentifier());
    as(() -> rm.getApplicationMasterService()
        .registerApplicationMaster(RegisterApplicationMasterRequest.newInstance("127.0.0.1", 0, "")));
  }

  private ApplicationId submit(UserGroupInformation user, String queue) throws Exception {
    return user.doAs((PrivilegedExceptionAction<ApplicationId>) () -> {
      ApplicationId id = rm.getClientRMService()
          .getNewApplication(Records.newRecord(GetNewApplicationRequest.class)).getApplicationId();
      ApplicationSubmissionContext app = Records.newRecord(ApplicationSubmissionContext.class);
      app.setApplicationId(id);
      app.setApplicationName("scale " + id.getId());
      app.setQueue(queue);
      app.setUnmanagedAM(true);
      app.setResource(Resource.newInstance(128, 1));
      app.setAMContainerSpec(Records.newRecord(ContainerLaunchContext.class));
      rm.getClientRMService().submitApplication(SubmitApplicationRequest.newInstance(app));
      return id;
    });
  }

  private RMAppAttempt launched(ApplicationId id, ApplicationAttemptId attempt) throws Exception {
    for (int i = 0; i < 6000; i++) {
      RMAppAttempt found = rm.getRMContext().getRMApps().get(id).getRMAppAttempt(attempt);
      if (found != null && found.getAppAttemptState() == RMAppAttemptState.LAUNCHED) {
        return found;
      }
      Thread.sleep(10);
    }
    throw new IllegalStateException(id + " was not accepted");
  }

  private <T> T as(PrivilegedExceptionAction<T> action) throws Exception {
    return master.doAs(action);
  }

  /** One heartbeat of the master: what it is given. */
  public synchronized List<Container> allocate(
      List<ResourceRequest> asks, List<SchedulingRequest> constrained, List<ContainerId> release) throws Exception {
    AllocateRequest request = AllocateRequest.newInstance(responseId, 0.1f, asks, release, null);
    request.setSchedulingRequests(constrained);
    AllocateResponse response = as(() -> rm.getApplicationMasterService().allocate(request));
    responseId = response.getResponseId();
    return response.getAllocatedContainers();
  }

  /** One heartbeat of the master; what it is given starts at once. */
  synchronized void heartbeat() throws Exception {
    List<ResourceRequest> asks = List.of();
    if (!asked) {
      asked = true;
      asks = List.of(ResourceRequest.newBuilder().priority(Priority.newInstance(1)).resourceName("*")
          .capability(Resource.newInstance(256, 1, Map.of("yarn.io/gpu", 1L))).numContainers(wanted)
          .allocationRequestId(1).build());
    }
    for (Container container : allocate(asks, List.of(), List.of())) {
      nodes.get(container.getNodeId()).start(container.getId());
      ALLOCATED.incrementAndGet();
    }
  }
}
