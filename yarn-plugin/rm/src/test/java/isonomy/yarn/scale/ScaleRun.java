package isonomy.yarn.scale;

import isonomy.yarn.IsonomyWebServices;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.webapp.RMWebServices;

/**
 * A real ResourceManager with simulated NodeManagers and applications in one JVM. Prints a line of JSON a second, the
 * last one with `"end": true`. Properties: scale.scheduler (isonomy, capacity), scale.nodes, scale.gpus (of a node),
 * scale.apps, scale.web (port), scale.idle_s, scale.limit_s, isonomy.bridge.port and isonomy.bridge.token-file.
 */
public final class ScaleRun {
  private final boolean isonomy = System.getProperty("scale.scheduler").equals("isonomy");
  private final int gpus = Integer.getInteger("scale.gpus", 8);
  private final int count = Integer.getInteger("scale.nodes");
  private final int appCount = Integer.getInteger("scale.apps");
  private final long begun = System.nanoTime();
  private final ScheduledExecutorService pool = Executors.newScheduledThreadPool(4);
  private final Map<NodeId, SimulatedNode> nodes = new HashMap<>();
  private final List<SimulatedApp> apps = new ArrayList<>();
  private final long heartbeatMs = Math.max(1000, count);
  private ResourceManager rm;
  private double askedAt;
  private double servedAt;
  private String placing = "null";

  private Configuration conf() throws Exception {
    YarnConfiguration c = new YarnConfiguration();
    c.set(YarnConfiguration.RM_SCHEDULER, (isonomy ? Timed.Isonomy.class : Timed.Capacity.class).getName());
    if (isonomy) {
      c.setClass(YarnConfiguration.YARN_WEBAPP_CUSTOM_WEBSERVICE_CLASS, IsonomyWebServices.class, RMWebServices.class);
      c.setBoolean("isonomy.scheduler.require-executor", false);  // these nodes start no processes
      c.set("isonomy.bridge.port", System.getProperty("isonomy.bridge.port"));
      c.set("isonomy.bridge.token-file", System.getProperty("isonomy.bridge.token-file"));
    }
    for (String name : List.of("", "scheduler.", "resource-tracker.", "admin.")) {
      c.set("yarn.resourcemanager." + name + "address", "127.0.0.1:0");
    }
    c.set("yarn.resourcemanager.webapp.address", "127.0.0.1:" + System.getProperty("scale.web"));
    c.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
    c.setLong(YarnConfiguration.RM_NM_EXPIRY_INTERVAL_MS, 3_600_000);
    c.setLong(YarnConfiguration.RM_AM_EXPIRY_INTERVAL_MS, 3_600_000);
    c.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    c.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    c.set("yarn.scheduler.capacity.maximum-applications", "100000");
    c.set("yarn.scheduler.capacity.root.queues", "default");
    c.set("yarn.scheduler.capacity.root.default.capacity", "100");
    c.set("yarn.scheduler.capacity.root.default.user-limit-factor", "100");
    c.set("yarn.scheduler.capacity.node-locality-delay", "-1");
    String folder = Files.createTempDirectory("isonomy-scale").toString();
    c.set(YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR, "file://" + folder);
    c.set("isonomy.scheduler.mode", "on");  // as an upgrade finds it
    c.set("isonomy.scheduler.mode-dir", folder);
    return c;
  }

  private double seconds() {
    return (System.nanoTime() - begun) / 1e9;
  }

  private void every(long periodMs, int index, int of, Beat beat) {
    pool.scheduleAtFixedRate(() -> {
      try {
        beat.run();
      } catch (Exception e) {
        e.printStackTrace();
      }
    }, periodMs * index / of, periodMs, TimeUnit.MILLISECONDS);
  }

  private interface Beat {
    void run() throws Exception;
  }

  private void start() throws Exception {
    rm = new ResourceManager();
    rm.init(conf());
    rm.start();
    Resource size = Resource.newInstance(256 * gpus + 6144, 64, Map.of("yarn.io/gpu", (long) gpus));
    for (int i = 0; i < count; i++) {
      SimulatedNode node = new SimulatedNode(rm.getResourceTrackerService(), i + 1, size);
      nodes.put(node.id, node);
      node.register();
    }
    int at = 0;
    for (SimulatedNode node : nodes.values()) {
      every(heartbeatMs, at++, count, node::heartbeat);
    }
    say(false);
    for (int i = 0; i < appCount; i++) {
      apps.add(new SimulatedApp(rm, nodes, "user" + i % 20, count * gpus / appCount));
      if (i % 200 == 0) {
        say(false);
      }
    }
    Timed.HEARTBEAT.reset();
    askedAt = seconds();
    for (int i = 0; i < appCount; i++) {
      every(1000, i, appCount, apps.get(i)::heartbeat);
    }
  }

  private int running() {
    return nodes.values().stream().mapToInt(SimulatedNode::containers).sum();
  }

  private void say(boolean end) {
    Runtime jvm = Runtime.getRuntime();
    long cpu = ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
    String more = end ? String.format(Locale.ROOT, ", \"end\": true, \"asked_s\": %.2f, \"served_s\": %s,"
            + " \"heartbeat_placing\": %s, \"heartbeat_idle\": %s, \"node_added\": %s, \"other_events\": %s", askedAt,
        servedAt == 0 ? "null" : String.format(Locale.ROOT, "%.2f", servedAt), placing, Timed.HEARTBEAT.json(),
        Timed.NODE_ADDED.json(), Timed.OTHER.json()) : "";
    System.out.printf(Locale.ROOT,
        "{\"at_s\": %.2f, \"nodes\": %d, \"apps\": %d, \"asked\": %b, \"allocated\": %d, \"running\": %d,"
            + " \"wanted\": %d, \"cpu_s\": %.2f, \"heap_mb\": %d%s}%n",
        seconds(), nodes.size(), apps.size(), askedAt > 0, SimulatedApp.ALLOCATED.get(), running(), wanted(), cpu / 1e9,
        (jvm.totalMemory() - jvm.freeMemory()) >> 20, more);
    System.out.flush();
  }

  private int wanted() {
    return appCount * (count * gpus / appCount);
  }

  private void run() throws Exception {
    start();
    double idleS = Double.parseDouble(System.getProperty("scale.idle_s", "20"));
    double limitS = Double.parseDouble(System.getProperty("scale.limit_s", "600"));
    while (seconds() < limitS && (servedAt == 0 || seconds() < servedAt + idleS)) {
      Thread.sleep(1000);
      if (servedAt == 0 && SimulatedApp.ALLOCATED.get() >= wanted()) {
        servedAt = seconds();
        placing = Timed.HEARTBEAT.json();
        Timed.HEARTBEAT.reset();
      }
      say(false);
    }
    say(true);
  }

  public static void main(String[] args) throws Exception {
    int status = 1;
    try {
      new ScaleRun().run();
      status = 0;
    } catch (Exception e) {
      e.printStackTrace();
    }
    Runtime.getRuntime().halt(status);  // YARN leaves threads behind
  }
}
