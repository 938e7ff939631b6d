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
 * @param workers number of workers of one job, each in its own container
 * @param memoryMb memory of one worker, MiB
 * @param gpusPerWorker GPUs of one worker as written in -worker_resources
 * @param gpusPerJob GPUs of one job: isonomy.gpus_per_job, else workers x gpusPerWorker
 * @param servers parameter servers of one job, which run in its workers' containers
 */
record JobSpec(String name, String queue, String launchCommand, int workers, long memoryMb, int vcores,
    long gpusPerWorker, long gpusPerJob, Map<String, String> env, List<Localization> localizations, String input,
    String checkpoint, String savedModel, boolean tensorboard, List<Quicklink> quicklinks, Servers servers) {

  /**
   * Parameter servers.
   *
   * @param memoryMb what a server adds to the memory of the worker beside it, MiB; vcores alike
   * @param launchCommand empty: the workers'
   */
  record Servers(int count, long memoryMb, int vcores, String launchCommand) {
    static final Servers NONE = new Servers(0, 0, 0, "");
  }

  private static final String DEFAULT_QUEUE = "default";
  private static final String NO_DOCKER = "-docker_image: not supported; workers run in the NodeManagers' own Python"
      + " (isonomy.python), leave it out";
  private static final Set<String> RESERVED_ENV = Set.of("CUDA_VISIBLE_DEVICES", "TF_CONFIG",
      "HADOOP_TOKEN_FILE_LOCATION");

  static JobSpec of(RunJobParameters parameters, GroupOptions group) throws UserError {
    refuseUnsupported(parameters);
    if (!parameters.getName().matches("[A-Za-z0-9][A-Za-z0-9._-]*")) {
      throw new UserError("-name " + parameters.getName() + ": letters, digits, '.', '_' and '-' only");
    }
    String command = parameters.getWorkerLaunchCmd();
    if (command == null || command.isBlank()) {
      throw new UserError("-worker_launch_cmd is absent: the command that trains");
    }
    int workers = parameters.getNumWorkers();
    Resource resource = parameters.getWorkerResource();
    checkResources("-worker_resources", resource);
    long gpus = gpusOf(resource);
    String queue = parameters.getQueue() == null ? DEFAULT_QUEUE : parameters.getQueue();
    return new JobSpec(parameters.getName(), queue, command, workers, resource.getMemorySize(),
        Math.max(1, resource.getVirtualCores()), gpus, gpusPerJob(workers, gpus, group), environment(parameters),
        parameters.getLocalizations(), parameters.getInputPath(), parameters.getCheckpointPath(),
        parameters.getSavedModelPath(), hasBoard(parameters, group), parameters.getQuicklinks(),
        servers(parameters));
  }

  private static Servers servers(RunJobParameters parameters) throws UserError {
    if (!(parameters instanceof TensorFlowRunJobParameters)
        || ((TensorFlowRunJobParameters) parameters).getNumPS() == 0) {
      return Servers.NONE;
    }
    TensorFlowRunJobParameters tensorFlow = (TensorFlowRunJobParameters) parameters;
    Resource resource = tensorFlow.getPsResource();
    checkResources("-ps_resources", resource);
    if (gpusOf(resource) > 0) {
      throw new UserError("-ps_resources gpu=" + gpusOf(resource) + ": parameter servers run without GPUs, leave it out");
    }
    String command = tensorFlow.getPSLaunchCmd();
    return new Servers(tensorFlow.getNumPS(), resource.getMemorySize(), resource.getVirtualCores(),
        command == null ? "" : command);
  }

  /** Whether TensorBoard runs in the application master's container. */
  private static boolean hasBoard(RunJobParameters parameters, GroupOptions group) {
    return "true".equals(group.isonomyConf().get(GroupOptions.PREFIX + "tensorboard"))
        || parameters instanceof TensorFlowRunJobParameters
        && ((TensorFlowRunJobParameters) parameters).isTensorboardEnabled();
  }

  private static void refuseUnsupported(RunJobParameters parameters) throws UserError {
    if (parameters instanceof TensorFlowRunJobParameters) {
      if (((TensorFlowRunJobParameters) parameters).getPsDockerImage() != null) {
        throw new UserError(NO_DOCKER);
      }
    } else if (parameters instanceof MXNetRunJobParameters) {
      MXNetRunJobParameters mxNet = (MXNetRunJobParameters) parameters;
      refuseServers("-num_ps", mxNet.getNumPS());
      refuseServers("-num_schedulers", mxNet.getNumSchedulers());
    }
    if (parameters.isDistributeKeytab()) {
      throw new UserError("-distribute_keytab: not supported; the job runs on delegation tokens, leave it out");
    }
    if (parameters.getDockerImageName() != null || parameters.getWorkerDockerImage() != null) {
      throw new UserError(NO_DOCKER);
    }
    if (parameters.getNumWorkers() < 1) {
      throw new UserError("-num_workers " + parameters.getNumWorkers() + ": at least 1 worker is needed");
    }
  }

  private static void refuseServers(String option, int number) throws UserError {
    if (number > 0) {
      throw new UserError(option + " " + number
          + ": MXNet's servers are not supported; use synchronous workers (-num_workers)");
    }
  }

  private static void checkResources(String option, Resource resource) throws UserError {
    if (resource.getMemorySize() <= 0) {
      throw new UserError(option + ": memory is absent, write for example memory=2G,vcores=2");
    }
    for (ResourceInformation info : resource.getResources()) {
      boolean known = Set.of("memory-mb", "vcores", ResourceInformation.GPU_URI).contains(info.getName());
      if (!known && info.getValue() > 0) {
        throw new UserError(option + " " + info.getName() + ": only memory, vcores and gpu are supported");
      }
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
      if (workers > 1 && asked > 0 && asked != group.gpusPerJob()) {
        throw new UserError("--conf isonomy.gpus_per_job=" + group.gpusPerJob() + ": disagrees with -num_workers "
            + workers + " x gpu=" + gpusPerWorker);
      }
      return group.gpusPerJob();
    }
    if (asked == 0 && group.isSearch()) {
      throw new UserError("--conf isonomy.gpus_per_job is absent, and -worker_resources has no gpu: "
          + group.appScheduler() + " needs one of them");
    }
    return asked;
  }

  private static Map<String, String> environment(RunJobParameters parameters) throws UserError {
    Map<String, String> env = new LinkedHashMap<>();
    for (String pair : parameters.getEnvars()) {
      int equals = pair.indexOf('=');
      String name = equals < 0 ? pair : pair.substring(0, equals);
      if (RESERVED_ENV.contains(name) || name.startsWith("ISONOMY_")) {
        throw new UserError("-env " + name + ": this variable is set by Isonomy, leave it out");
      }
      env.put(name, equals < 0 ? "" : pair.substring(equals + 1));
    }
    return env;
  }
}
