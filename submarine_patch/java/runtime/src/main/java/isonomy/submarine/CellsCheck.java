package isonomy.submarine;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** Checks, before an application is created, whether the cluster's cells can serve a job. */
final class CellsCheck {
  private CellsCheck() {
  }

  /** Refuses a priority above YARN's limit, and cells that the queue does not own or that are too small. */
  static void check(RmRest rest, String queue, JobSpec job, GroupOptions group, Configuration conf)
      throws IOException {
    checkPriority(group.priority(), conf);
    String pinned = value(group, "pinned");
    String within = value(group, "within");
    boolean cellType = "socket".equals(within) || "switch".equals(within);
    if (pinned != null || cellType) {
      checkCells(rest.get("cells"), queue, job.gpusPerJob(), pinned, cellType ? within : null);
    }
  }

  private static String value(GroupOptions group, String key) {
    String value = group.isonomyConf().get(GroupOptions.PREFIX + key);
    return value == null || value.isEmpty() ? null : value;
  }

  /** Checks the priority only if the client's own configuration sets the limit, which is the ResourceManager's. */
  static void checkPriority(Long priority, Configuration conf) throws UserError {
    String[] sources = conf.getPropertySources(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY);
    boolean own = sources != null && sources.length > 0 && !sources[sources.length - 1].contains("yarn-default.xml");
    long highest = conf.getLong(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY, 0);
    if (priority != null && own && priority > highest) {
      throw new UserError("--priority " + priority + ": the cluster's highest is " + highest + " ("
          + YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY + " in yarn-site.xml)");
    }
  }

  /** Package-private for tests: {@code cells} is the answer of /ws/v1/cluster/isonomy/cells. */
  static void checkCells(JsonNode cells, String queue, long gangGpus, String pinned, String within)
      throws UserError {
    JsonNode clusters = cells.path("virtual_clusters");
    if (within != null && !types(cells).containsKey(within)) {
      throw new UserError("--conf isonomy.within=" + within + ": no cells of this type are known; the cells file has "
          + (types(cells).isEmpty() ? "none" : String.join(", ", types(cells).keySet())));
    }
    if (within != null && types(cells).get(within) < gangGpus) {
      throw new UserError("--conf isonomy.within=" + within + ": a job asks for " + gangGpus + " GPUs, a " + within
          + " has at most " + types(cells).get(within));
    }
    if (pinned == null) {
      return;
    }
    JsonNode mine = clusters.has(queue) ? clusters.get(queue) : clusters.path(queue.replaceFirst("^root\\.", ""));
    List<String> pins = new ArrayList<>();
    for (JsonNode cell : mine.path("cells")) {
      if (!cell.path("pinned").asText("").isEmpty() && !cell.path("pinned").isNull()) {
        pins.add(cell.get("pinned").asText());
        if (pinned.equals(cell.get("pinned").asText()) && cell.path("gpus").asLong() < gangGpus) {
          throw new UserError("--conf isonomy.pinned=" + pinned + ": a job asks for " + gangGpus
              + " GPUs, the cell has " + cell.path("gpus").asLong());
        }
      }
    }
    if (!pins.contains(pinned)) {
      throw new UserError("--conf isonomy.pinned=" + pinned + ": the pinned cells of " + queue + " are "
          + (pins.isEmpty() ? "none" : String.join(", ", new TreeSet<>(pins))));
    }
  }

  /** The cells file's types below a machine, with the GPUs of the largest cell of each. */
  private static Map<String, Long> types(JsonNode cells) {
    Map<String, Long> found = new TreeMap<>();
    cells.path("cell_types").fields().forEachRemaining(type -> found.put(type.getKey(), type.getValue().asLong()));
    return found;
  }
}
