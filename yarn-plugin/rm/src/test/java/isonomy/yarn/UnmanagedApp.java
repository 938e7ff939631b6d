package isonomy.yarn;

import java.lang.reflect.UndeclaredThrowableException;
import java.nio.ByteBuffer;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.ContainerUpdateType;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.ExecutionTypeRequest;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.records.UpdateContainerRequest;
import org.apache.hadoop.yarn.api.records.YarnApplicationAttemptState;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.utils.BuilderUtils;
import org.apache.hadoop.yarn.util.Records;

/** An application whose master is this test. */
final class UnmanagedApp implements AutoCloseable {
  final YarnClient yarn = YarnClient.createYarnClient();
  private final AMRMClient<ContainerRequest> rm = AMRMClient.createAMRMClient();
  private final NMClient nm = NMClient.createNMClient();
  private final UserGroupInformation ugi;
  final ApplicationId id;
  final ApplicationAttemptId attempt;
  final List<Container> allocated = new ArrayList<>();
  final List<ContainerStatus> completed = new ArrayList<>();
  boolean preemptionAnnounced;

  UnmanagedApp(Configuration conf, String user) throws Exception {
    this(conf, user, "default");
  }

  UnmanagedApp(Configuration conf, String user, String queue) throws Exception {
    ugi = UserGroupInformation.createRemoteUser(user);
    yarn.init(conf);
    yarn.start();
    ApplicationSubmissionContext app = yarn.createApplication().getApplicationSubmissionContext();
    id = app.getApplicationId();
    app.setApplicationName("test");
    app.setQueue(queue);
    app.setUnmanagedAM(true);
    app.setResource(Resource.newInstance(128, 1));
    app.setAMContainerSpec(Records.newRecord(ContainerLaunchContext.class));
    yarn.submitApplication(app);
    attempt = awaitLaunched();
    ugi.addToken(yarn.getAMRMToken(id));
    as(() -> {
      rm.init(conf);
      rm.start();
      nm.init(conf);
      nm.start();
      return rm.registerApplicationMaster("localhost", 0, "");
    });
  }

  private ApplicationAttemptId awaitLaunched() throws Exception {
    for (int i = 0; i < 200; i++) {
      ApplicationReport report = yarn.getApplicationReport(id);
      ApplicationAttemptId current = report.getCurrentApplicationAttemptId();
      if (current != null && yarn.getApplicationAttemptReport(current).getYarnApplicationAttemptState()
          == YarnApplicationAttemptState.LAUNCHED) {
        return current;
      }
      Thread.sleep(50);
    }
    throw new AssertionError("the application was not accepted");
  }

  <T> T as(PrivilegedExceptionAction<T> action) throws Exception {
    try {
      return ugi.doAs(action);
    } catch (UndeclaredThrowableException e) {
      throw e.getCause() instanceof Exception ? (Exception) e.getCause() : e;
    }
  }

  static Resource resource(int gpus) {
    return gpus == 0 ? Resource.newInstance(256, 1) : Resource.newInstance(256, 1, Map.of(Gpus.RESOURCE, (long) gpus));
  }

  void ask(int gpus, long requestId) {
    rm.addContainerRequest(new ContainerRequest(
        resource(gpus), null, null, Priority.newInstance(1), requestId, true, null));
  }

  /** By the constraint API, with tags of its own. */
  void askConstrained(int gpus, long requestId, int count, Set<String> tags) {
    askConstrained(gpus, requestId, count, tags, null);
  }

  void askConstrained(int gpus, long requestId, int count, Set<String> tags, PlacementConstraint constraint) {
    rm.addSchedulingRequests(List.of(SchedulingRequest.newBuilder()
        .priority(Priority.newInstance(1)).allocationRequestId(requestId).allocationTags(tags)
        .placementConstraintExpression(constraint)
        .resourceSizing(ResourceSizing.newInstance(count, resource(gpus))).build()));
  }

  /** On that host and nowhere else. */
  ContainerRequest askOnlyOn(int gpus, long requestId, String host) {
    ContainerRequest request = new ContainerRequest(
        resource(gpus), new String[] {host}, null, Priority.newInstance(1), requestId, false, null);
    rm.addContainerRequest(request);
    return request;
  }

  void withdraw(ContainerRequest request) {
    rm.removeContainerRequest(request);
  }

  void blacklist(String host) {
    rm.updateBlacklist(List.of(host), null);
  }

  void askOpportunistic(int gpus, long requestId) {
    rm.addContainerRequest(new ContainerRequest(resource(gpus), null, null, Priority.newInstance(1), requestId, true,
        null, ExecutionTypeRequest.newInstance(ExecutionType.OPPORTUNISTIC, true)));
  }

  void demote(Container container) {
    rm.requestContainerUpdate(container, UpdateContainerRequest.newInstance(container.getVersion(), container.getId(),
        ContainerUpdateType.DEMOTE_EXECUTION_TYPE, null, ExecutionType.OPPORTUNISTIC));
  }

  AllocateResponse heartbeat() throws Exception {
    AllocateResponse response = as(() -> rm.allocate(0.1f));
    allocated.addAll(response.getAllocatedContainers());
    completed.addAll(response.getCompletedContainersStatuses());
    preemptionAnnounced |= response.getPreemptionMessage() != null;
    return response;
  }

  /** Heartbeats until the condition holds, or for as long as it may take. */
  void heartbeatUntil(java.util.function.BooleanSupplier condition) throws Exception {
    for (int i = 0; i < 150 && !condition.getAsBoolean(); i++) {
      heartbeat();
      Thread.sleep(50);
    }
    if (!condition.getAsBoolean()) {
      throw new AssertionError("allocated " + allocated + ", completed " + completed);
    }
  }

  void launch(Container container, String command) throws Exception {
    ContainerLaunchContext context = ContainerLaunchContext.newInstance(
        Map.of(), Map.of("CUDA_VISIBLE_DEVICES", "7"), List.of(command), Map.<String, ByteBuffer>of(), null, Map.of());
    as(() -> nm.startContainer(container, context));
  }

  static ContainerTokenIdentifier token(Container container) throws Exception {
    return BuilderUtils.newContainerTokenIdentifier(container.getContainerToken());
  }

  @Override
  public void close() {
    close(FinalApplicationStatus.SUCCEEDED);
  }

  void close(FinalApplicationStatus status) {
    try {
      as(() -> {
        rm.unregisterApplicationMaster(status, "", "");
        rm.stop();
        nm.stop();
        return null;
      });
    } catch (Exception e) {
      throw new IllegalStateException(e);
    } finally {
      yarn.stop();
    }
  }
}
