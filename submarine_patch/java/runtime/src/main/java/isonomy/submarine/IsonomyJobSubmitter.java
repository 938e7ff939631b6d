package isonomy.submarine;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.ApplicationConstants.Environment;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.client.api.YarnClientApplication;
import org.apache.hadoop.yarn.client.util.YarnClientUtils;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.submarine.client.cli.param.runjob.RunJobParameters;
import org.apache.submarine.commons.runtime.ClientContext;
import org.apache.submarine.commons.runtime.JobSubmitter;
import org.apache.submarine.commons.runtime.param.Parameter;

/**
 * Submits one YARN application for a group of jobs; a plain job is a group of one.
 *
 * <p>Checks everything first; only then creates an application, fetches its token and stages its files.
 */
final class IsonomyJobSubmitter implements JobSubmitter {
  static final String APPLICATION_TYPE = "SUBMARINE";
  private static final int AM_MEMORY_MB = 512;
  /** TensorBoard runs in the application master's container. */
  private static final int BOARD_MEMORY_MB = 256;
  private static final int AM_VCORES = 1;
  private static final String AM_JAR = "isonomy-am.jar";

  private final ClientContext context;

  IsonomyJobSubmitter(ClientContext context) {
    this.context = context;
  }

  @Override
  public ApplicationId submitJob(Parameter holder) throws IOException, YarnException {
    RunJobParameters parameters = (RunJobParameters) holder.getParameters();
    try {
      return submit(parameters);
    } catch (Throwable e) {
      Staging.deleteEmpty(context.getRemoteDirectoryManager(), parameters.getName());
      throw e;
    }
  }

  private ApplicationId submit(RunJobParameters parameters) throws IOException, YarnException {
    GroupOptions group = GroupOptions.parse(parameters.getConfPairs());
    JobSpec job = JobSpec.of(parameters, group);
    SiteConf site = SiteConf.load(context.getYarnConfig(), group.hadoopConf());
    Path amJar = site.amJar();
    String webhdfs = site.webhdfs();
    String webhdfsCa = site.webhdfsCa();
    AppSpec.paths(job, webhdfs, site.hadoop());
    Staging.check(job.localizations(), site.hadoop());

    YarnClient yarn = context.getOrCreateYarnClient();
    ClusterCheck cluster = ClusterCheck.ask(yarn);
    String queue = cluster.check(job, group);
    CellsCheck.check(new RmRest(site.hadoop()), queue, job, group, site.hadoop());

    YarnClientApplication created = yarn.createApplication();
    ApplicationSubmissionContext app = created.getApplicationSubmissionContext();
    ApplicationId id = app.getApplicationId();
    AgentToken token = AgentToken.fetch(new RmRest(site.hadoop()), id);
    Path folder = new Path(context.getRemoteDirectoryManager().getJobStagingArea(job.name(), true), id.toString());
    Staging staging = new Staging(site.hadoop(), folder);
    try {
      staging.create();
      AppSpec.Submission submission = new AppSpec.Submission(id.toString(),
          UserGroupInformation.getCurrentUser().getShortUserName(), queue, folder.toString(), webhdfs,
          webhdfsCa, site.python(group), token, staging.localize(job.localizations()));
      Path spec = staging.write(AppSpec.FILE_NAME, AppSpec.toJson(job, group, submission, site.hadoop()));
      Map<String, LocalResource> files = Map.of(AppSpec.FILE_NAME, staging.resource(spec),
          AM_JAR, staging.resource(staging.place(amJar, AM_JAR)));
      describe(app, job, group, queue, site.hadoop());
      app.setAMContainerSpec(masterContainer(files, submission.python(), token, folder, site.hadoop()));
      yarn.submitApplication(app);
    } catch (Throwable e) {
      staging.delete();
      throw e;
    }
    if (cluster.nodes().isEmpty()) {
      System.err.println("submarine: no machine of the cluster runs now; the app waits for the first");
    }
    System.out.println("Submitted " + id + " (" + job.name() + ", " + group.appScheduler() + ") to queue " + queue);
    return id;
  }

  private static void describe(ApplicationSubmissionContext app, JobSpec job, GroupOptions group, String queue,
      Configuration conf) {
    app.setApplicationName(job.name());
    app.setApplicationType(APPLICATION_TYPE);
    app.setApplicationTags(new HashSet<>(Set.of("isonomy", "app_scheduler=" + group.appScheduler())));
    app.setQueue(queue);
    if (group.priority() != null) {
      app.setPriority(Priority.newInstance(Math.toIntExact(group.priority())));
    }
    int memoryMb = AM_MEMORY_MB + (job.tensorboard() ? BOARD_MEMORY_MB : 0);
    app.setResource(Resource.newInstance(memoryMb, AM_VCORES));
    app.setKeepContainersAcrossApplicationAttempts(true);
    app.setMaxAppAttempts(conf.getInt(YarnConfiguration.RM_AM_MAX_ATTEMPTS,
        YarnConfiguration.DEFAULT_RM_AM_MAX_ATTEMPTS));
  }

  private static ContainerLaunchContext masterContainer(Map<String, LocalResource> files, String python,
      AgentToken token, Path folder, Configuration conf) throws IOException {
    String command = "${JAVA_HOME:+$JAVA_HOME/bin/}java -Xmx192m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        + " -Dlog4j.configuration=isonomy-am-log4j.properties isonomy.am.AmShell " + singleQuoted(python)
        + " 1>" + ApplicationConstants.LOG_DIR_EXPANSION_VAR + "/stdout"
        + " 2>" + ApplicationConstants.LOG_DIR_EXPANSION_VAR + "/stderr";
    Map<String, String> env = new HashMap<>(Map.of("CLASSPATH", classPath(conf)));
    if (!UserGroupInformation.isSecurityEnabled()) {
      env.put("HADOOP_USER_NAME", UserGroupInformation.getCurrentUser().getShortUserName());
    }
    return ContainerLaunchContext.newInstance(files, env, List.of(command), null, credentials(token, folder, conf),
        null);
  }

  static String classPath(Configuration conf) {
    List<String> path = new ArrayList<>(List.of(Environment.PWD.$$() + "/" + AM_JAR, Environment.HADOOP_CONF_DIR.$$()));
    path.addAll(List.of(conf.getTrimmedStrings(YarnConfiguration.YARN_APPLICATION_CLASSPATH,
        YarnConfiguration.DEFAULT_YARN_CROSS_PLATFORM_APPLICATION_CLASSPATH)));
    return String.join(ApplicationConstants.CLASS_PATH_SEPARATOR, path);
  }

  /** The Isonomy token, and with security HDFS's delegation tokens. */
  private static ByteBuffer credentials(AgentToken token, Path folder, Configuration conf) throws IOException {
    Credentials credentials = new Credentials();
    token.addTo(credentials);
    if (UserGroupInformation.isSecurityEnabled()) {
      folder.getFileSystem(conf).addDelegationTokens(YarnClientUtils.getRmPrincipal(conf), credentials);
    }
    DataOutputBuffer buffer = new DataOutputBuffer();
    credentials.writeTokenStorageToStream(buffer);
    return ByteBuffer.wrap(buffer.getData(), 0, buffer.getLength());
  }

  /** The text in single quotes, as the NodeManager puts the command in double quotes; refuses special characters. */
  private static String singleQuoted(String text) throws UserError {
    UserError.when(!text.matches("[^'\"$`\\\\\\s]+"),
        "isonomy.python " + text + ": a path without blanks, quotes, '$' and '\\'");
    return "'" + text + "'";
  }
}
