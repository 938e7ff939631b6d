package isonomy.submarine;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.submarine.client.cli.param.Localization;
import org.apache.submarine.client.cli.param.Quicklink;
import org.apache.submarine.client.cli.param.runjob.MXNetRunJobParameters;
import org.apache.submarine.client.cli.param.runjob.RunJobParameters;
import org.apache.submarine.client.cli.param.runjob.TensorFlowRunJobParameters;

/**
 * The stock options of {@code job run} that Isonomy supports; the others are refused, never ignored.
 *
 * @param gpusPerJob GPUs of one job: isonomy.gpus_per_job, else those of its workers
 * @param servers parameter servers of one job, which run in its workers' containers
 */
record JobSpec(String name, String queue, Worker worker, long gpusPerJob, List<Localization> localizations,
    String input, String checkpoint, String savedModel, boolean tensorboard, List<Quicklink> quicklinks,
    Servers servers) {

  /**
   * The workers of one job, each in its own container.
   *
   * @param memoryMb memory of one worker, MiB; vcores and gpus alike, as written in -worker_resources
   */
  record Worker(String launchCmd, long memoryMb, int vcores, long gpus, int count, Map<String, String> env) {
  }

  /**
   * Parameter servers.
   *
   * @param memoryMb what a server adds to the memory of the worker beside it, MiB; vcores alike
   * @param launchCmd empty: the workers'
   */
  record Servers(int count, long memoryMb, int vcores, String launchCmd) {
    static final Servers NONE = new Servers(0, 0, 0, "");
  }

  private static final String DEFAULT_QUEUE = "default";
  private static final String NO_DOCKER = "-docker_image: not supported; workers run in the NodeManagers' own Python"
      + " (isonomy.python), leave it out";
  private static final Set<String> RESERVED_ENV = Set.of("CUDA_VISIBLE_DEVICES", "TF_CONFIG",
      "HADOOP_TOKEN_FILE_LOCATION");

  static JobSpec of(RunJobParameters parameters, GroupOptions group) throws UserError {
    refuseUnsupported(parameters);
    UserError.when(!parameters.getName().matches("[A-Za-z0-9][A-Za-z0-9._-]*"),
        "-name " + parameters.getName() + ": letters, digits, '.', '_' and '-' only");
    String command = parameters.getWorkerLaunchCmd();
    UserError.when(command == null || command.isBlank(), "-worker_launch_cmd is absent: the command that trains");
    int workers = parameters.getNumWorkers();
    Resource resource = parameters.getWorkerResource();
    checkResources("-worker_resources", resource);
    long gpus = gpusOf(resource);
    String queue = parameters.getQueue() == null ? DEFAULT_QUEUE : parameters.getQueue();
    Worker worker = new Worker(command, resource.getMemorySize(), Math.max(1, resource.getVirtualCores()), gpus,
        workers, environment(parameters));
    return new JobSpec(parameters.getName(), queue, worker, gpusPerJob(workers, gpus, group),
        parameters.getLocalizations(), parameters.getInputPath(), parameters.getCheckpointPath(),
        parameters.getSavedModelPath(), hasBoard(parameters, group), parameters.getQuicklinks(),
        servers(parameters));
  }

  private static Servers servers(RunJobParameters parameters) throws UserError {
    if (!(parameters instanceof TensorFlowRunJobParameters tensorFlow) || tensorFlow.getNumPS() == 0) {
      return Servers.NONE;
    }
    Resource resource = tensorFlow.getPsResource();
    checkResources("-ps_resources", resource);
    UserError.when(gpusOf(resource) > 0,
        "-ps_resources gpu=" + gpusOf(resource) + ": parameter servers run without GPUs, leave it out");
    String command = tensorFlow.getPSLaunchCmd();
    return new Servers(tensorFlow.getNumPS(), resource.getMemorySize(), resource.getVirtualCores(),
        command == null ? "" : command);
  }

  /** Whether TensorBoard runs in the application master's container. */
  private static boolean hasBoard(RunJobParameters parameters, GroupOptions group) {
    return "true".equals(group.given("tensorboard"))
        || parameters instanceof TensorFlowRunJobParameters tensorFlow && tensorFlow.isTensorboardEnabled();
  }

  private static void refuseUnsupported(RunJobParameters parameters) throws UserError {
    if (parameters instanceof TensorFlowRunJobParameters tensorFlow && tensorFlow.getPsDockerImage() != null) {
      throw new UserError(NO_DOCKER);
    }
    if (parameters instanceof MXNetRunJobParameters mxNet) {
      refuseServers("-num_ps", mxNet.getNumPS());
      refuseServers("-num_schedulers", mxNet.getNumSchedulers());
    }
    UserError.when(parameters.isDistributeKeytab(),
        "-distribute_keytab: not supported; the job runs on delegation tokens, leave it out");
    UserError.when(parameters.getDockerImageName() != null || parameters.getWorkerDockerImage() != null, NO_DOCKER);
    UserError.when(parameters.getNumWorkers() < 1,
        "-num_workers " + parameters.getNumWorkers() + ": at least 1 worker is needed");
  }

  private static void refuseServers(String option, int number) throws UserError {
    UserError.when(number > 0,
        option + " " + number + ": MXNet's servers are not supported; use synchronous workers (-num_workers)");
  }

  private static void checkResources(String option, Resource resource) throws UserError {
    UserError.when(resource.getMemorySize() <= 0, option + ": memory is absent, write for example memory=2G,vcores=2");
    for (ResourceInformation info : resource.getResources()) {
      boolean known = Set.of("memory-mb", "vcores", ResourceInformation.GPU_URI).contains(info.getName());
      UserError.when(!known && info.getValue() > 0,
          option + " " + info.getName() + ": only memory, vcores and gpu are supported");
    }
  }

  static long gpusOf(Resource resource) {
    for (ResourceInformation info : resource.getResources()) {
      if (info.getName().equals(ResourceInformation.GPU_URI)) {
        return info.getValue();
      }
    }
    return 0;
  }

  private static long gpusPerJob(int workers, long gpusPerWorker, GroupOptions group) throws UserError {
    long asked = workers * gpusPerWorker;
    if (group.gpusPerJob() != null) {
      UserError.when(workers > 1 && asked > 0 && asked != group.gpusPerJob(),
          "--conf isonomy.gpus_per_job=" + group.gpusPerJob() + ": disagrees with -num_workers "
          + workers + " x gpu=" + gpusPerWorker);
      return group.gpusPerJob();
    }
    UserError.when(asked == 0 && group.isSearch(),
        "--conf isonomy.gpus_per_job is absent, and -worker_resources has no gpu: "
        + group.appScheduler() + " needs one of them");
    return asked;
  }

  private static Map<String, String> environment(RunJobParameters parameters) throws UserError {
    Map<String, String> env = new LinkedHashMap<>();
    for (String pair : parameters.getEnvars()) {
      int equals = pair.indexOf('=');
      String name = equals < 0 ? pair : pair.substring(0, equals);
      UserError.when(RESERVED_ENV.contains(name) || name.startsWith("ISONOMY_"),
          "-env " + name + ": this variable is set by Isonomy, leave it out");
      env.put(name, equals < 0 ? "" : pair.substring(equals + 1));
    }
    return env;
  }
}
