package isonomy.yarn;

import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;

/** The mode, and the queues whose asks for GPUs the control plane serves; CapacityScheduler serves the others. */
final class Managed {
  static final String MODE = "isonomy.scheduler.mode";
  static final String QUEUES = "isonomy.scheduler.queues";
  /** Version 0.1's key instead of the mode; true means off. */
  static final String BYPASS = "isonomy.scheduler.bypass";

  /** Whether nodes without an Isonomy executor get no leases. */
  static final String REQUIRE_EXECUTOR = "isonomy.scheduler.require-executor";
  /** The node attribute that Isonomy's executors report. */
  static final String EXECUTOR = "nm.yarn.io/isonomy-executor";

  /** What the plugin does: nothing, report only (CapacityScheduler places GPUs), or place GPUs. */
  private enum Mode {
    OFF,
    SHADOW,
    ON
  }

  private final Mode mode;
  private final List<String> queues;
  private final boolean requireExecutor;

  private Managed(Mode mode, Collection<String> queues, boolean requireExecutor) {
    this.mode = mode;
    this.queues = List.copyOf(queues);
    this.requireExecutor = requireExecutor;
  }

  /** Reads the configuration; throws IllegalArgumentException for a malformed key. */
  static Managed of(Configuration conf) {
    String named = conf.getTrimmed(MODE, conf.getBoolean(BYPASS, false) ? "off" : "on").toUpperCase(Locale.ROOT);
    for (Mode mode : Mode.values()) {
      if (mode.name().equals(named)) {
        Collection<String> queues = conf.getTrimmedStringCollection(QUEUES);
        for (String queue : queues) {
          if (!queue.equals("root") && !queue.startsWith("root.")) {
            throw new IllegalArgumentException(
                "yarn-site.xml: " + QUEUES + " must name full paths as in root.research, not " + queue);
          }
        }
        return new Managed(mode, queues, conf.getBoolean(REQUIRE_EXECUTOR, true));
      }
    }
    throw new IllegalArgumentException(
        "yarn-site.xml: " + MODE + " must be on, shadow or off, not " + named.toLowerCase(Locale.ROOT));
  }

  static Managed nothing() {
    return new Managed(Mode.OFF, List.of(), true);
  }

  /** Whether events are reported to the control plane. */
  boolean isOn() {
    return mode != Mode.OFF;
  }

  /** Whether events are reported but no directive is carried out. */
  boolean isShadow() {
    return mode == Mode.SHADOW;
  }

  /** Whether the control plane serves this queue: it or a parent is named, or no queue is. */
  boolean has(String queue) {
    return mode == Mode.ON && (queues.isEmpty() || queues.stream().anyMatch(q -> queue.equals(q) || queue.startsWith(q + ".")));
  }

  /** Whether tokens name the GPUs of each container on a node with these attributes: there an executor obeys them. */
  boolean numbers(Map<String, String> attributes) {
    return !attributes.getOrDefault(EXECUTOR, "").isEmpty() || places() && !requireExecutor;
  }

  /** Whether it places GPUs. */
  boolean places() {
    return mode == Mode.ON;
  }

  /** Why nothing is placed on a node with these attributes; empty where something may be. */
  String withheld(Map<String, String> attributes) {
    return requireExecutor && attributes.getOrDefault(EXECUTOR, "").isEmpty()
        ? "its NodeManager has no Isonomy executor (node attribute " + EXECUTOR + ", "
            + "yarn.nodemanager.container-executor.class)"
        : "";
  }

  @Override
  public String toString() {
    return mode.name().toLowerCase(Locale.ROOT) + (queues.isEmpty() ? "" : " for " + queues)
        + (requireExecutor ? "" : ", also on nodes without our executor");
  }
}
