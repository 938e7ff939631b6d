package isonomy.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import isonomy.wire.v1.Mode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;

/**
 * The mode, the queues whose asks for GPUs the control plane serves (CapacityScheduler serves the others), and who
 * said so when. {@link ModeStore} keeps it.
 */
final class Managed {
  /** Keys of earlier versions, which the upgrade reads once. */
  static final String MODE = "isonomy.scheduler.mode";
  static final String QUEUES = "isonomy.scheduler.queues";
  /** Version 0.1's key instead of the mode; true means off. */
  static final String BYPASS = "isonomy.scheduler.bypass";

  /** Whether nodes without an Isonomy executor get no leases. */
  static final String REQUIRE_EXECUTOR = "isonomy.scheduler.require-executor";
  /** The node attribute that Isonomy's executors report. */
  static final String EXECUTOR = "nm.yarn.io/isonomy-executor";

  private static final ObjectMapper JSON = new ObjectMapper();

  /** What the plugin does: nothing, report only (CapacityScheduler places GPUs), or place GPUs. */
  private static final List<String> MODES = List.of("off", "shadow", "on");
  /** Never stored. Nothing with GPUs is placed, by nobody, and nothing is ended. */
  private static final String UNREADABLE = "unreadable";

  private final Mode mode;

  private Managed(String name, Collection<String> queues, String by, long atMs, String problem) {
    mode = Mode.newBuilder().setName(name).addAllQueues(queues).setBy(by).setAtMs(atMs).setProblem(problem).build();
  }

  /** Throws IllegalArgumentException for an unknown mode or a queue without a full path. */
  static Managed of(String named, Collection<String> queues, String by, long atMs) {
    for (String queue : queues) {
      if (!queue.equals("root") && !queue.startsWith("root.")) {
        throw new IllegalArgumentException("queues: must be full paths as in root.research (got " + queue + ")");
      }
    }
    return MODES.stream().filter(named::equalsIgnoreCase).findFirst()
        .map(name -> new Managed(name, queues, by, atMs, ""))
        .orElseThrow(() -> new IllegalArgumentException("mode: must be on, shadow or off (got " + named + ")"));
  }

  /** Off, as where nobody has switched it on. */
  static Managed nothing() {
    return new Managed("off", List.of(), "", 0, "");
  }

  static Managed unreadable(String problem) {
    return new Managed(UNREADABLE, List.of(), "", 0, String.valueOf(problem));
  }

  /** The keys of earlier versions that are set. */
  static List<String> obsolete(Configuration conf) {
    return Stream.of(MODE, QUEUES, BYPASS).filter(key -> conf.get(key) != null).collect(Collectors.toList());
  }

  /** The mode that an earlier version had in force, by its keys; off if there are none. */
  static Managed before(Configuration conf) {
    List<String> keys = obsolete(conf);
    if (keys.isEmpty()) {
      return nothing();
    }
    try {
      return of(conf.getTrimmed(MODE, conf.getBoolean(BYPASS, false) ? "off" : "on"),
          conf.getTrimmedStringCollection(QUEUES), "the upgrade, from " + String.join(", ", keys),
          System.currentTimeMillis());
    } catch (IllegalArgumentException e) {
      throw new IllegalArgumentException("yarn-site.xml: isonomy.scheduler." + e.getMessage(), e);
    }
  }

  /** As it is stored; throws IOException if these bytes are no mode. */
  static Managed parse(byte[] stored) throws IOException {
    try {
      JsonNode json = JSON.readTree(stored);
      if (!json.required("queues").isArray()) {
        throw new IOException("queues: must be a list");
      }
      List<String> queues = new ArrayList<>();
      json.get("queues").forEach(queue -> queues.add(queue.asText()));
      return of(json.required("mode").asText(), queues, json.required("by").asText(), json.required("at_ms").asLong());
    } catch (IllegalArgumentException e) {
      throw new IOException(e.getMessage(), e);
    }
  }

  byte[] stored() throws IOException {
    return JSON.writeValueAsBytes(toJson());
  }

  ObjectNode toJson() {
    ObjectNode json = JSON.createObjectNode().put("mode", name()).put("by", mode.getBy()).put("at_ms", mode.getAtMs());
    queues().forEach(json.putArray("queues")::add);
    return json;
  }

  /** on, shadow, off or unreadable. */
  String name() {
    return mode.getName();
  }

  /** The queues that are named; none: all are served. */
  List<String> queues() {
    return mode.getQueuesList();
  }

  Mode toWire() {
    return mode;
  }

  /** Why the stored mode cannot be read or be in force; empty where it is. */
  String problem() {
    return mode.getProblem();
  }

  /** Whether events are reported to the control plane. */
  boolean isOn() {
    return !name().equals("off");
  }

  /** Whether events are reported but no directive is carried out. */
  boolean isShadow() {
    return name().equals("shadow");
  }

  /** Whether directives are carried out. */
  boolean places() {
    return name().equals("on");
  }

  /** Whether this queue's asks for GPUs are held back: it or a parent is named, or no queue is. */
  boolean has(String queue) {
    return isOn() && !isShadow()
        && (queues().isEmpty() || queues().stream().anyMatch(q -> queue.equals(q) || queue.startsWith(q + ".")));
  }

  @Override
  public String toString() {
    return name() + (queues().isEmpty() ? "" : " for " + String.join(", ", queues()))
        + (mode.getBy().isEmpty() ? "" : ", by " + mode.getBy()) + (problem().isEmpty() ? "" : ": " + problem());
  }
}
