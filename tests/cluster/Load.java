import java.nio.ByteBuffer;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.YarnApplicationAttemptState;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.NMTokenCache;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.util.Records;

/**
 * Plain YARN applications whose masters are threads here, so that many cost little. Each line of stdin is one: when to
 * submit it (seconds from the start), name, user, queue, node label (- for none), GPUs, seconds; it has one container, which
 * sleeps. Prints for each its name, its id, and how long after its submission it got the container (milliseconds).
 */
public final class Load {
  private static final YarnConfiguration CONF = new YarnConfiguration();

  public static void main(String[] args) throws Exception {
    List<Thread> apps = new ArrayList<>();
    Scanner in = new Scanner(System.in);
    long beginMs = System.currentTimeMillis();
    while (in.hasNextLine()) {
      String[] words = in.nextLine().split(" ");
      long atMs = beginMs + (long) (1000 * Double.parseDouble(words[0]));
      UserGroupInformation user = UserGroupInformation.createRemoteUser(words[2]);
      Thread app = new Thread(() -> {
        try {
          Thread.sleep(Math.max(0, atMs - System.currentTimeMillis()));
          user.doAs((PrivilegedExceptionAction<Void>) () -> run(words, user));
        } catch (Exception e) {
          e.printStackTrace();
        }
      });
      app.start();
      apps.add(app);
    }
    for (Thread app : apps) {
      app.join();
    }
  }

  private static Void run(String[] words, UserGroupInformation user) throws Exception {
    YarnClient yarn = YarnClient.createYarnClient();
    yarn.init(CONF);
    yarn.start();
    ApplicationSubmissionContext context = yarn.createApplication().getApplicationSubmissionContext();
    ApplicationId id = context.getApplicationId();
    context.setApplicationName(words[1]);
    context.setQueue(words[3]);
    context.setNodeLabelExpression(words[4].equals("-") ? null : words[4]);
    context.setUnmanagedAM(true);
    context.setMaxAppAttempts(1);
    context.setResource(Resource.newInstance(128, 1));
    context.setAMContainerSpec(Records.newRecord(ContainerLaunchContext.class));
    yarn.submitApplication(context);
    long submittedMs = System.currentTimeMillis();
    awaitLaunched(yarn, id);
    UserGroupInformation own = UserGroupInformation.createRemoteUser(user.getShortUserName());
    own.addToken(yarn.getAMRMToken(id));
    own.doAs((PrivilegedExceptionAction<Void>) () -> hold(words, id, submittedMs));
    yarn.stop();
    return null;
  }

  private static void awaitLaunched(YarnClient yarn, ApplicationId id) throws Exception {
    while (true) {
      ApplicationAttemptId attempt = yarn.getApplicationReport(id).getCurrentApplicationAttemptId();
      if (attempt != null && yarn.getApplicationAttemptReport(attempt).getYarnApplicationAttemptState()
          == YarnApplicationAttemptState.LAUNCHED) {
        return;
      }
      Thread.sleep(200);
    }
  }

  /** Registers, asks for the container, and keeps it for its time. */
  private static Void hold(String[] words, ApplicationId id, long submittedMs) throws Exception {
    AMRMClient<ContainerRequest> rm = AMRMClient.createAMRMClient();
    NMClient nm = NMClient.createNMClient();
    NMTokenCache tokens = new NMTokenCache();
    rm.setNMTokenCache(tokens);
    nm.setNMTokenCache(tokens);
    rm.init(CONF);
    rm.start();
    nm.init(CONF);
    nm.start();
    rm.registerApplicationMaster("localhost", 0, "");
    long gpus = Long.parseLong(words[5]);
    Resource size = gpus == 0 ? Resource.newInstance(256, 1)
        : Resource.newInstance(256, 1, Map.of("yarn.io/gpu", gpus));
    rm.addContainerRequest(new ContainerRequest(size, null, null, Priority.newInstance(1), true,
        words[4].equals("-") ? null : words[4]));
    boolean ended = false;
    while (!ended) {
      AllocateResponse response = rm.allocate(0.1f);
      for (Container container : response.getAllocatedContainers()) {
        System.out.println(words[1] + " " + id + " " + (System.currentTimeMillis() - submittedMs));
        ContainerLaunchContext launch = ContainerLaunchContext.newInstance(
            Map.of(), Map.of(), List.of("sleep " + words[6]), Map.<String, ByteBuffer>of(), null, Map.of());
        nm.startContainer(container, launch);
      }
      ended = !response.getCompletedContainersStatuses().isEmpty();
      Thread.sleep(500);
    }
    rm.unregisterApplicationMaster(FinalApplicationStatus.SUCCEEDED, "", "");
    rm.stop();
    nm.stop();
    return null;
  }
}
