package isonomy.yarn;

import static java.util.stream.Collectors.toSet;

import isonomy.wire.v1.Directive;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.Place;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.webapp.RMWebServices;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.io.TempDir;

/** A YARN of one JVM with the scheduler in it: two nodes with four GPUs each, queues default and other. */
abstract class MiniYarn {
  static ScriptedControlPlane control;
  /** Whether whatever the scheduler tells fails. */
  static volatile boolean failing;

  /** The scheduler with the test in the control plane's place. */
  public static final class TestScheduler extends IsonomyScheduler {
    @Override
    ControlPlane link(BridgeConfig config, int deadlineMs) {
      return control;
    }

    @Override
    void emit(Supplier<Event.Builder> event) {
      if (failing) {
        throw new NoSuchMethodError("as between versions (test)");
      }
      super.emit(event);
    }
  }

  @TempDir
  Path attributes;

  MiniYARNCluster cluster;
  Configuration conf;
  private int directives;

  @BeforeEach
  void start(TestInfo test) throws Exception {
    control = new ScriptedControlPlane();
    failing = false;
    YarnConfiguration c = new YarnConfiguration();
    c.setClass(YarnConfiguration.RM_SCHEDULER, TestScheduler.class, IsonomyScheduler.class);
    c.setClass(YarnConfiguration.YARN_WEBAPP_CUSTOM_WEBSERVICE_CLASS, IsonomyWebServices.class, RMWebServices.class);
    c.set("isonomy.bridge.token-file", "unused");
    // As an upgrade finds it.
    c.set(Managed.MODE, test.getTags().contains("off") ? "off" : test.getTags().contains("shadow") ? "shadow" : "on");
    c.set(ModeStore.FOLDER, attributes.toString());
    if (test.getTags().contains("unreadable")) {
      Files.writeString(attributes.resolve("isonomy-mode.json"), "{\"mode\": \"o");
    }
    c.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
    c.setInt(YarnConfiguration.NM_PMEM_MB, 4096);
    c.setInt(YarnConfiguration.RM_NM_HEARTBEAT_INTERVAL_MS, 100);
    c.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    c.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    c.set("yarn.scheduler.capacity.root.queues", "default,other");
    for (String queue : List.of("root.default", "root.other")) {
      c.set("yarn.scheduler.capacity." + queue + ".capacity", "50");
      c.set("yarn.scheduler.capacity." + queue + ".user-limit-factor", "100");
    }
    c.set(YarnConfiguration.RM_PLACEMENT_CONSTRAINTS_HANDLER, YarnConfiguration.SCHEDULER_RM_PLACEMENT_CONSTRAINTS_HANDLER);
    c.setBoolean(Managed.REQUIRE_EXECUTOR, false);
    configure(c);
    c.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 99.9f);
    c.setBoolean(YarnConfiguration.NM_PMEM_CHECK_ENABLED, false);
    c.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
    c.set(YarnConfiguration.YARN_ADMIN_ACL, "root-of-test");
    c.setLong(YarnConfiguration.NM_SLEEP_DELAY_BEFORE_SIGKILL_MS, 100);
    c.setLong(YarnConfiguration.NM_PROCESS_KILL_WAIT_MS, 100);
    c.set(YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR, attributes.toUri().toString());
    cluster = new MiniYARNCluster("isonomy", 2, 1, 1);
    cluster.init(c);
    cluster.start();
    conf = cluster.getConfig();
  }

  /** What a class of tests needs beside. */
  void configure(Configuration c) {}

  @AfterEach
  void stop() {
    cluster.stop();
  }

  Directive.Builder directive() {
    return Directive.newBuilder().setId("d" + ++directives);
  }

  Directive place(UnmanagedApp app, long requestId, String nodeId, List<Integer> gpuIds) {
    return directive().setPlace(Place.newBuilder()
        .setAttemptId(app.attempt.toString()).setAllocationRequestId(requestId).setPriority(1).setNodeId(nodeId)
        .addAllGpuIds(gpuIds).setLeaseId("lease-" + requestId).setMemoryMb(256).setVcores(1)).build();
  }

  static boolean isAsk(Event e, long requestId, int count) {
    return e.hasAsk() && e.getAsk().getAllocationRequestId() == requestId && e.getAsk().getCount() == count;
  }

  NodeId node(int number) {
    return cluster.getNodeManager(number).getNMContext().getNodeId();
  }

  void mode(String mode) throws Exception {
    scheduler().modeSwitch.to(mode, null, "the test");
  }

  IsonomyScheduler scheduler() {
    return (IsonomyScheduler) cluster.getResourceManager().getResourceScheduler();
  }

  /** An app that asks for GPUs, and the control plane knows it. */
  void ask(UnmanagedApp app, int gpus, long requestId) throws Exception {
    app.ask(gpus, requestId);
    app.heartbeat();
    control.awaitEither(e -> isAsk(e, requestId, 1),
        s -> s.getAsksList().stream().anyMatch(a -> a.getAllocationRequestId() == requestId));
  }

  /** Replaces what a host's NodeManagers report of themselves. */
  void attribute(String host, Map<String, String> values) throws Exception {
    cluster.getResourceManager().getRMContext().getNodeAttributesManager().replaceNodeAttributes(
        NodeAttribute.PREFIX_DISTRIBUTED, Map.of(host, values.entrySet().stream().map(e -> NodeAttribute.newInstance(
            NodeAttribute.PREFIX_DISTRIBUTED, e.getKey(), NodeAttributeType.STRING, e.getValue())).collect(toSet())));
  }
}
