package isonomy.submarine;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.submarine.client.cli.param.Quicklink;

/** isonomy-app.json: the app's specification for the Agent. */
final class AppSpec {
  static final String FILE_NAME = "isonomy-app.json";
  private static final ObjectMapper JSON = new ObjectMapper();

  private AppSpec() {
  }

  /** The submission's data besides the user's options. */
  record Submission(String appId, String user, String queue, String staging, String webhdfs,
      String webhdfsCa, String python, AgentToken token, List<Map<String, Object>> resources) {
  }

  static String toJson(JobSpec job, GroupOptions group, Submission submission, Configuration conf)
      throws IOException {
    Map<String, Object> spec = new LinkedHashMap<>();
    spec.put("app_id", submission.appId());
    spec.put("name", job.name());
    spec.put("queue", submission.queue());
    spec.put("user", submission.user());
    spec.put("app_scheduler", group.appScheduler());
    spec.put("search_space", group.searchSpace());
    spec.put("gpus_per_job", job.gpusPerJob());
    spec.put("max_iterations", group.maxIterations());
    spec.put("min_iterations", group.minIterations());
    spec.put("eta", group.eta());
    spec.put("jobs", group.jobs());
    spec.put("budget_iterations", group.budgetIterations());
    spec.put("metric", group.metric());
    spec.put("seed", group.seed());
    spec.put("max_retries", group.maxRetries());
    spec.put("iteration_s", group.iterationS());
    spec.put("slowdown", group.slowdown());
    spec.put("gpu_type", group.gpuType());
    spec.put("worker", worker(job));
    spec.put("servers", servers(job.servers()));
    spec.put("paths", paths(job, conf));
    spec.put("staging", submission.staging());
    spec.put("webhdfs", submission.webhdfs());
    spec.put("webhdfs_ca", submission.webhdfsCa());
    spec.put("hdfs_user", submission.user());
    spec.put("resources", submission.resources());
    spec.put("python", submission.python());
    spec.put("arbiter", submission.token().arbiter());
    spec.put("ca", submission.token().ca());
    spec.put("conf", group.isonomyConf());
    spec.put("tensorboard", job.tensorboard());
    spec.put("quicklinks", job.quicklinks().stream().map(AppSpec::link).collect(Collectors.toList()));
    try {
      return JSON.writerWithDefaultPrettyPrinter().writeValueAsString(spec);
    } catch (JsonProcessingException e) {
      throw new IOException(e);
    }
  }

  private static Map<String, Object> link(Quicklink link) {
    Map<String, Object> map = new LinkedHashMap<>();
    map.put("label", link.getLabel());
    map.put("protocol", link.getProtocol());
    map.put("host", link.getComponentInstanceName());
    map.put("port", link.getPort());
    return map;
  }

  private static Map<String, Object> worker(JobSpec job) {
    Map<String, Object> worker = new LinkedHashMap<>();
    worker.put("launch_cmd", job.launchCommand());
    worker.put("memory_mb", job.memoryMb());
    worker.put("vcores", job.vcores());
    worker.put("gpus", job.gpusPerWorker());
    worker.put("count", job.workers());
    worker.put("env", job.env());
    return worker;
  }

  private static Map<String, Object> servers(JobSpec.Servers servers) {
    Map<String, Object> map = new LinkedHashMap<>();
    map.put("count", servers.count());
    map.put("memory_mb", servers.memoryMb());
    map.put("vcores", servers.vcores());
    map.put("launch_cmd", servers.launchCommand());
    return map;
  }

  /** The job's paths: the input as given (it may be local to each machine), output paths on HDFS. */
  static Map<String, Object> paths(JobSpec job, Configuration conf) throws IOException {
    Map<String, Object> paths = new LinkedHashMap<>();
    paths.put("input", job.input());
    paths.put("checkpoint", onHdfs("-checkpoint_path", job.checkpoint(), conf));
    paths.put("saved_model", onHdfs("-saved_model_path", job.savedModel(), conf));
    return paths;
  }

  private static String onHdfs(String option, String place, Configuration conf) throws IOException {
    if (place == null) {
      return null;
    }
    Path path = new Path(place);
    if ("file".equals(path.toUri().getScheme())) {
      throw new UserError(option + " " + place + ": lies on one machine; give a path on HDFS");
    }
    return path.getFileSystem(conf).makeQualified(path).toString();
  }
}
