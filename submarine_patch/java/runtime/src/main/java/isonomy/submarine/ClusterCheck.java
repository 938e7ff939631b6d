package isonomy.submarine;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.regex.Matcher;
import java.util.stream.Collectors;
import org.apache.commons.text.similarity.LevenshteinDistance;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.exceptions.YarnException;

/**
 * The cluster's queues and nodes, read from YARN to check a job before an application is created.
 *
 * @param leafQueues full paths of the leaf queues
 * @param nodes capabilities of the running nodes
 */
record ClusterCheck(List<String> leafQueues, List<String> parentQueues, List<Resource> nodes) {

  static ClusterCheck ask(YarnClient yarn) throws IOException, YarnException {
    List<String> leaves = new ArrayList<>();
    List<String> parents = new ArrayList<>(List.of("root"));
    sort("root", yarn.getRootQueueInfos(), leaves, parents);
    Collections.sort(leaves);
    List<Resource> nodes = yarn.getNodeReports(NodeState.RUNNING).stream().map(NodeReport::getCapability).toList();
    return new ClusterCheck(leaves, parents, nodes);
  }

  /** Collects the full paths of the queues below a parent, as Hadoop 3.3's QueueInfo lacks them. */
  private static void sort(String parent, List<QueueInfo> queues, List<String> leaves, List<String> parents) {
    for (QueueInfo queue : queues) {
      String name = queue.getQueueName();
      String path = parent + "." + name.substring(name.lastIndexOf('.') + 1);
      List<QueueInfo> children = queue.getChildQueues();
      boolean leaf = children == null || children.isEmpty();
      (leaf ? leaves : parents).add(path);
      if (!leaf) {
        sort(path, children, leaves, parents);
      }
    }
  }

  /**
   * Refuses a job that could never run; returns the full path of its queue.
   *
   * <p>Sizes are not checked while no machine runs, as right after a start of the ResourceManager.
   */
  String check(JobSpec job, GroupOptions group) throws UserError {
    String queue = leafQueue(job.queue());
    Matcher parts = GroupOptions.SEGMENTS.matcher(String.valueOf(group.given("segments")));
    if (parts.matches() && Long.parseLong(parts.group(1)) * Long.parseLong(parts.group(2)) != job.gpusPerJob()) {
      throw new UserError("--segments " + parts.group() + ": must be all GPUs of a job, " + job.gpusPerJob());
    }
    if (!nodes.isEmpty()) {
      checkSizes(job, "machine".equals(group.given("within")));
    }
    return queue;
  }

  private void checkSizes(JobSpec job, boolean onOneMachine) throws UserError {
    long gpus = nodes.stream().mapToLong(JobSpec::gpusOf).sum();
    UserError.when(job.gpusPerJob() > gpus,
        "a job asks for " + job.gpusPerJob() + " GPUs (isonomy.gpus_per_job or -worker_resources);"
        + " the largest gang that the cluster can hold has " + gpus + counted());
    long largestNodeGpus = nodes.stream().mapToLong(JobSpec::gpusOf).max().orElse(0);
    UserError.when(job.worker().gpus() > largestNodeGpus,
        "-worker_resources gpu=" + job.worker().gpus() + ": the largest machine has "
        + largestNodeGpus + " GPUs" + counted());
    UserError.when(onOneMachine && job.gpusPerJob() > largestNodeGpus,
        "--within machine: a job asks for at least " + job.gpusPerJob() + " GPUs; the largest machine has "
        + largestNodeGpus + counted());
    // a gang may lie on one machine, where one worker has all servers beside it
    JobSpec.Servers servers = job.servers();
    long memoryMb = job.worker().memoryMb() + servers.count() * servers.memoryMb();
    long vcores = job.worker().vcores() + (long) servers.count() * servers.vcores();
    boolean fits = nodes.stream().anyMatch(
        node -> node.getMemorySize() >= memoryMb && node.getVirtualCores() >= vcores);
    if (!fits) {
      throw new UserError("-worker_resources memory=" + job.worker().memoryMb() + "M,vcores=" + job.worker().vcores()
          + (servers.count() == 0 ? "" : ", and -ps_resources for each of " + servers.count() + " servers") + ": no running machine has as much; the machines have "
          + nodes.stream().map(node -> node.getMemorySize() + "M and " + node.getVirtualCores() + " vcores").distinct()
              .collect(Collectors.joining(", or ")));
    }
  }

  private String counted() {
    return nodes.size() == 1 ? " (one machine runs now)" : " (" + nodes.size() + " machines run now)";
  }

  private String leafQueue(String name) throws UserError {
    List<String> found = matching(leafQueues, name);
    if (found.size() == 1) {
      return found.get(0);
    }
    UserError.when(found.size() > 1,
        "-queue " + name + ": there are several, write the full path: " + String.join(", ", found));
    String what = matching(parentQueues, name).isEmpty() ? "no such queue" : "not a leaf queue";
    String wanted = name.substring(name.lastIndexOf('.') + 1);
    LevenshteinDistance distance = new LevenshteinDistance(2);
    String near = leafQueues.stream().filter(path -> distance.apply(path.substring(path.lastIndexOf('.') + 1), wanted) >= 0)
        .findFirst().map(path -> "did you mean " + path + "? ").orElse("");
    throw new UserError("-queue " + name + ": " + what + "; " + near + "the leaf queues are "
        + String.join(", ", leafQueues));
  }

  /** Queues with this full path, or with this last name. */
  private static List<String> matching(List<String> paths, String name) {
    if (paths.contains(name)) {
      return List.of(name);
    }
    return paths.stream().filter(path -> path.endsWith("." + name) && !name.contains(".")).toList();
  }
}
