package isonomy.submarine;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import java.io.IOException;
import java.net.URI;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DFSUtilClient;

/** isonomy-app.json: the app's specification for the Agent. */
final class AppSpec {
  static final String FILE_NAME = "isonomy-app.json";
  /** Writes a record's components under their names in snake case. */
  private static final ObjectMapper JSON =
      new ObjectMapper().setPropertyNamingStrategy(PropertyNamingStrategies.SNAKE_CASE);

  private AppSpec() {
  }

  /** The submission's data besides the user's options. */
  record Submission(String appId, String user, String queue, String staging, String webhdfs,
      String webhdfsCa, String python, AgentToken token, List<Map<String, Object>> resources) {
  }

  private record Link(String label, String protocol, String host, int port) {
  }

  static String toJson(JobSpec job, GroupOptions group, Submission submission, Configuration conf)
      throws IOException {
    Map<String, Object> spec = new LinkedHashMap<>();
    spec.put("app_id", submission.appId());
    spec.put("name", job.name());
    spec.put("queue", submission.queue());
    spec.put("user", submission.user());
    spec.putAll(group.spec());
    spec.put("gpus_per_job", job.gpusPerJob());
    spec.put("worker", job.worker());
    spec.put("servers", job.servers());
    spec.put("paths", paths(job, submission.webhdfs(), conf));
    spec.put("staging", submission.staging());
    spec.put("webhdfs", submission.webhdfs());
    spec.put("webhdfs_ca", submission.webhdfsCa());
    spec.put("hdfs_user", submission.user());
    spec.put("resources", submission.resources());
    spec.put("python", submission.python());
    spec.put("arbiter", submission.token().arbiter());
    spec.put("ca", submission.token().ca());
    spec.put("tensorboard", job.tensorboard());
    spec.put("quicklinks", job.quicklinks().stream().map(link -> new Link(
        link.getLabel(), link.getProtocol(), link.getComponentInstanceName(), link.getPort())).toList());
    return JSON.writerWithDefaultPrettyPrinter().writeValueAsString(spec);
  }

  /** The job's paths: the input as given (it may be local to each machine), output paths on HDFS. */
  static Map<String, Object> paths(JobSpec job, String webhdfs, Configuration conf) throws IOException {
    Map<String, Object> paths = new LinkedHashMap<>();
    paths.put("input", job.input());
    paths.put("checkpoint", onHdfs("-checkpoint_path", job.checkpoint(), webhdfs, conf));
    paths.put("saved_model", onHdfs("-saved_model_path", job.savedModel(), webhdfs, conf));
    return paths;
  }

  private static String onHdfs(String option, String place, String webhdfs, Configuration conf) throws IOException {
    if (place == null) {
      return null;
    }
    FileSystem home = FileSystem.get(conf);
    Path path = new Path(place).makeQualified(home.getUri(), home.getWorkingDirectory());
    try {
      return home.makeQualified(path).toString();
    } catch (IllegalArgumentException elsewhere) {
      UserError.when(!isServed(path.toUri(), webhdfs, conf),
          option + " " + place + ": results are written to " + home.getUri() + "; give a path there");
      return path.toString();
    }
  }

  /** Whether this WebHDFS is of the place's NameNodes: one of a nameservice, or what a default viewfs leads to. */
  private static boolean isServed(URI place, String webhdfs, Configuration conf) {
    String name = place.getHost();
    return name != null && place.getScheme().endsWith("hdfs")
        && DFSUtilClient.getAddressesForNameserviceId(conf, name, name + ":8020", "dfs.namenode.rpc-address").values()
            .stream().anyMatch(node -> List.of(webhdfs.split("[:/;]+")).contains(node.getHostString()));
  }
}
