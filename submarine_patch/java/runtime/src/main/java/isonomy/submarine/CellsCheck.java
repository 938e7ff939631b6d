package isonomy.submarine;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
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
    String pinned = group.given("pinned");
    String within = group.given("within");
    boolean cellType = "socket".equals(within) || "switch".equals(within);
    if (pinned != null || cellType) {
      checkCells(rest.get("cells"), queue, job.gpusPerJob(), pinned, cellType ? within : null);
    }
  }

  /** Checks the priority only if the client's own configuration sets the limit, which is the ResourceManager's. */
  static void checkPriority(Long priority, Configuration conf) throws UserError {
    String[] sources = conf.getPropertySources(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY);
    boolean own = sources != null && sources.length > 0 && !sources[sources.length - 1].contains("yarn-default.xml");
    long highest = conf.getLong(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY, 0);
    UserError.when(priority != null && own && priority > highest,
        "--priority " + priority + ": the cluster's highest is " + highest + " ("
        + YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY + " in yarn-site.xml)");
  }

  /** Package-private for tests: {@code cells} is the answer of /ws/v1/cluster/isonomy/cells. */
  static void checkCells(JsonNode cells, String queue, long gangGpus, String pinned, String within)
      throws UserError {
    if (within != null) {
      checkType(cells.path("cell_types"), gangGpus, within);
    }
    if (pinned == null) {
      return;
    }
    JsonNode clusters = cells.path("virtual_clusters");
    JsonNode mine = clusters.has(queue) ? clusters.get(queue) : clusters.path(queue.replaceFirst("^root\\.", ""));
    List<String> pins = new ArrayList<>();
    for (JsonNode cell : mine.path("cells")) {
      String pin = cell.path("pinned").asText("");
      UserError.when(pin.equals(pinned) && cell.path("gpus").asLong() < gangGpus,
          "--conf isonomy.pinned=" + pinned + ": a job asks for " + gangGpus
          + " GPUs, the cell has " + cell.path("gpus").asLong());
      if (cell.hasNonNull("pinned") && !pin.isEmpty()) {
        pins.add(pin);
      }
    }
    UserError.when(!pins.contains(pinned),
        "--conf isonomy.pinned=" + pinned + ": the pinned cells of " + queue + " are " + listed(pins));
  }

  /** {@code types}: the cells file's types below a machine, with the GPUs of the largest cell of each. */
  private static void checkType(JsonNode types, long gangGpus, String within) throws UserError {
    List<String> known = new ArrayList<>();
    types.fieldNames().forEachRemaining(known::add);
    UserError.when(!known.contains(within), "--conf isonomy.within=" + within
        + ": no cells of this type are known; the cells file has " + listed(known));
    UserError.when(types.get(within).asLong() < gangGpus, "--conf isonomy.within=" + within + ": a job asks for "
        + gangGpus + " GPUs, a " + within + " has at most " + types.get(within).asLong());
  }

  private static String listed(List<String> names) {
    return names.isEmpty() ? "none" : String.join(", ", new TreeSet<>(names));
  }
}
