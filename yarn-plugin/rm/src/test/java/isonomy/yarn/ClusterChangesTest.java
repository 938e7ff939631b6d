package isonomy.yarn;

import static java.util.stream.Collectors.toList;
import static java.util.stream.Collectors.toSet;
import static org.apache.hadoop.yarn.api.resource.PlacementConstraints.NODE;
import static org.apache.hadoop.yarn.api.resource.PlacementConstraints.PlacementTargets.allocationTag;
import static org.apache.hadoop.yarn.api.resource.PlacementConstraints.and;
import static org.apache.hadoop.yarn.api.resource.PlacementConstraints.targetIn;
import static org.apache.hadoop.yarn.api.resource.PlacementConstraints.targetNodeAttribute;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Kill;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.NodeDown;
import isonomy.wire.v1.Queue;
import isonomy.wire.v1.Snapshot;
import isonomy.yarn.scale.SimulatedNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeOpCode;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeLabel;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint.AbstractConstraint;
import org.apache.hadoop.yarn.api.resource.PlacementConstraints.PlacementTargets;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.nodelabels.CommonNodeLabelsManager;
import org.apache.hadoop.yarn.server.api.records.NodeHealthStatus;
import org.apache.hadoop.yarn.server.api.records.NodeStatus;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNodeDecommissioningEvent;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNodeEvent;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNodeEventType;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNodeStatusEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.QueueMetrics;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What changes in a cluster while apps run: the control plane hears of it, and nothing is placed against it. */
@Timeout(120)
class ClusterChangesTest extends MiniYarn {
  @Override
  void configure(Configuration c) {
    c.setBoolean(YarnConfiguration.NODE_LABELS_ENABLED, true);
    c.set(YarnConfiguration.FS_NODE_LABELS_STORE_ROOT_DIR, attributes.resolve("labels").toUri().toString());
    String prefix = "yarn.scheduler.capacity.";
    c.set(prefix + "root.accessible-node-labels.fast.capacity", "100");
    c.set(prefix + "root.other.accessible-node-labels", "fast");
    c.set(prefix + "root.other.accessible-node-labels.fast.capacity", "1w");
    c.set(prefix + "root.other.accessible-node-labels.fast.maximum-capacity", "100");
    c.set(prefix + "root.default.minimum-user-limit-percent", "25");
    c.set(prefix + "root.default.maximum-capacity", "80");
    // Queues that YARN makes by itself are below queues with weights.
    c.set(prefix + "root.queues", "default,other,users");
    c.set(prefix + "root.default.capacity", "1w");
    c.set(prefix + "root.other.capacity", "1w");
    c.set(prefix + "root.users.capacity", "0.001w");
    c.set(prefix + "root.users.auto-queue-creation-v2.enabled", "true");
    c.set(prefix + "root.users.auto-queue-creation-v2.leaf-template.maximum-capacity", "25");
  }

  /** A container of the app that runs on GPU 2 of node 0. */
  private String running(UnmanagedApp app) throws Exception {
    ask(app, 1, 5);
    DirectiveResult placed = control.carriedOut(place(app, 5, node(0).toString(), List.of(2)));
    assertTrue(placed.getOk(), placed.getReason());
    app.heartbeatUntil(() -> !app.allocated.isEmpty());
    app.launch(app.allocated.get(0), "exec sleep 100");
    control.await(e -> e.hasContainerRunning()
        && e.getContainerRunning().getContainerId().equals(placed.getContainerId()));
    return placed.getContainerId();
  }

  private Snapshot again() throws Exception {
    int before = control.snapshots();
    control.forget();
    return control.awaitSnapshot(before + 1);
  }

  @Test
  void aNodeThatIsDecommissionedIsToldWithAllItsGpus() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp busy = new UnmanagedApp(conf, "busy"); UnmanagedApp alice = new UnmanagedApp(conf, "alice")) {
      String id = running(busy);
      int from = control.count();
      cluster.getResourceManager().getRMContext().getDispatcher().getEventHandler()
          .handle(new RMNodeDecommissioningEvent(node(0), 600));
      Node told = control.await(from, e -> e.hasNodeUp() && e.getNodeUp().getDecommissioning()).getNodeUp();
      assertEquals(node(0).toString(), told.getNodeId());
      assertEquals(4, told.getGpus());
      ask(alice, 1, 6);
      DirectiveResult refused = control.carriedOut(place(alice, 6, node(0).toString(), List.of(0)));
      assertFalse(refused.getOk());
      assertTrue(refused.getReason().contains("DECOMMISSIONING"), refused.getReason());
      assertTrue(refused.getMachineAtFault());
      Snapshot snapshot = again();
      Node known = snapshot.getNodesList().stream().filter(Node::getDecommissioning).findFirst().orElseThrow();
      assertEquals(4, known.getGpus());
      assertEquals(List.of(id), snapshot.getContainersList().stream().map(GpuContainer::getContainerId).collect(toList()));
    }
  }

  /** What the events have said is what a snapshot says. */
  private void agreed() throws Exception {
    List<Set<?>> known = control.known();
    assertEquals(ScriptedControlPlane.known(again()), known);
  }

  private void awaitDown(NodeDown... nodes) throws Exception {
    for (int i = 0; i < 400 && !control.known().get(1).equals(Set.of(nodes)); i++) {
      Thread.sleep(50);
    }
    assertEquals(Set.of(nodes), control.known().get(1));
  }

  @Test
  void whatTheEventsSayIsWhatASnapshotSays() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    RMContext rm = cluster.getResourceManager().getRMContext();
    SimulatedNode lost = node(1, rm);
    SimulatedNode sick = node(2, rm);
    SimulatedNode outSick = node(3, rm);
    SimulatedNode outLost = node(4, rm);
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      running(app);
      ask(app, 2, 6);
      agreed();
      for (SimulatedNode node : List.of(sick, outSick)) {
        tell(new RMNodeStatusEvent(node.id, NodeStatus.newInstance(node.id, 1, List.of(), List.of(),
            NodeHealthStatus.newInstance(false, "a disk", 1), null, null, null)));
        control.await(e -> e.getNodeDown().getNodeId().equals(node.id.toString()));
      }
      for (SimulatedNode node : List.of(lost, outLost)) {
        tell(new RMNodeEvent(node.id, RMNodeEventType.EXPIRE));
        control.await(e -> e.getNodeDown().getNodeId().equals(node.id.toString()));
      }
      agreed();
      tell(new RMNodeEvent(outSick.id, RMNodeEventType.DECOMMISSION));
      Path excluded = Files.writeString(attributes.resolve("excluded"), outLost.id.getHost());
      Configuration hosts = new Configuration(conf);
      hosts.set(YarnConfiguration.RM_NODES_EXCLUDE_FILE_PATH, excluded.toString());
      rm.getNodesListManager().refreshNodes(hosts);
      awaitDown(down(lost, "LOST"), down(sick, "UNHEALTHY"));
      agreed();
      rm.getInactiveRMNodes().remove(lost.id);  // as yarn.resourcemanager.node-removal-untracked.timeout-ms does
      sick.register(List.of());
      sick.heartbeat();
      awaitDown();
      agreed();
    }
    control.await(Event::hasAppRemoved);
    agreed();
  }

  private static SimulatedNode node(int number, RMContext rm) throws Exception {
    SimulatedNode node = new SimulatedNode(rm.getResourceTrackerService(), number, UnmanagedApp.resource(4));
    node.register(List.of());
    return node;
  }

  private static NodeDown down(SimulatedNode node, String reason) {
    return NodeDown.newBuilder().setNodeId(node.id.toString()).setReason(reason).build();
  }

  private void tell(RMNodeEvent event) {
    cluster.getResourceManager().getRMContext().getDispatcher().getEventHandler().handle(event);
  }

  @Test
  void movesPrioritiesAndWhatWaitsAreSeen() throws Exception {
    Snapshot first = control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    Queue queue = first.getQueuesList().stream().filter(q -> q.getPath().equals("root.default")).findFirst().orElseThrow();
    assertEquals(0.25, queue.getUserLimit());
    assertEquals(100.0, queue.getUserLimitFactor());
    assertEquals(0.5, queue.getPartitionsOrThrow("").getAbsoluteCapacity(), 1e-3);
    assertEquals(0.8, queue.getPartitionsOrThrow("").getAbsoluteMaxCapacity(), 1e-6);
    assertTrue(first.getQueuesList().stream().anyMatch(q -> q.getPath().equals("root") && q.getParent()));
    QueueMetrics root = scheduler().getRootQueueMetrics();
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      app.ask(2, 4);
      ask(app, 2, 5);
      assertEquals(2, root.getPendingContainers());
      assertEquals(512, root.getPendingMB());
      assertEquals(4, Gpus.of(root.getPendingResources()));

      int from = control.count();
      app.yarn.moveApplicationAcrossQueues(app.id, "other");
      Event moved = control.await(from, Event::hasAppUpdated);
      assertEquals("root.other", moved.getAppUpdated().getQueue());
      assertEquals(2, root.getPendingContainers());
      assertEquals(2, scheduler().getQueue("root.other").getMetrics().getPendingContainers());
      assertEquals(0, scheduler().getQueue("root.default").getMetrics().getPendingContainers());
      Configuration priorities = new Configuration(conf);
      priorities.setInt(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY, 10);
      scheduler().setClusterMaxPriority(priorities);
      app.yarn.updateApplicationPriority(app.id, Priority.newInstance(7));
      control.await(from, e -> e.hasAppUpdated() && e.getAppUpdated().getPriority() == 7);

      DirectiveResult placed = control.carriedOut(place(app, 5, node(0).toString(), List.of(0, 1)));
      assertTrue(placed.getOk(), placed.getReason());
      assertEquals(1, root.getPendingContainers());
      // Killed before its master had it: it is wanted again.
      assertTrue(control.carriedOut(directive().setKill(
          Kill.newBuilder().setContainerId(placed.getContainerId()).setReason("test")).build()).getOk());
      assertEquals(2, root.getPendingContainers());
    }
    control.await(Event::hasAppRemoved);
    assertEquals(0, root.getPendingContainers());
    assertEquals(0, root.getPendingMB());
  }

  @Test
  void aQueueThatYarnMakesForItsFirstAppIsToldAtOnce() throws Exception {
    control.awaitSnapshot(1);
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice", "root.users.alice")) {
      Event told = control.await(
          e -> e.getUnasked().getQueuesList().stream().anyMatch(q -> q.getPath().equals("root.users.alice")));
      Queue made = told.getUnasked().getQueuesList().stream()
          .filter(q -> q.getPath().equals("root.users.alice")).findFirst().orElseThrow();
      assertTrue(made.getAbsoluteMaxCapacity() <= 0.25);
      Event added = control.await(e -> e.getAppAdded().getAppId().equals(app.id.toString()));
      assertTrue(told.getSeq() < added.getSeq());
    }
    try (UnmanagedApp later = new UnmanagedApp(conf, "alice", "root.users.alice")) {
      control.await(e -> e.hasAppAdded() && e.getAppAdded().getAppId().equals(later.id.toString()));
      assertEquals(1, control.snapshots());
      agreed();
    }
  }

  @Test
  void aMachineWithoutAnAsksNodeAttributesIsRefusedForGood() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    // YARN tells it the scheduler by host, and this test's nodes are all on one.
    scheduler().getNode(node(0)).updateNodeAttributes(Set.of(NodeAttribute.newInstance(
        NodeAttribute.PREFIX_DISTRIBUTED, "disk", NodeAttributeType.STRING, "hdd")));
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      DirectiveResult refused = tried(app, 5, onDisk("ssd"), 0);
      assertTrue(refused.getExcluded(), refused.getReason());
      assertFalse(refused.getMachineAtFault());
      DirectiveResult placed = tried(app, 6, onDisk("hdd"), 0);
      assertTrue(placed.getOk(), placed.getReason());
      for (String disk : List.of("hdd", "ssd")) {
        DirectiveResult beside = tried(app, 7, and(targetIn(NODE, allocationTag("other")), onDisk(disk)), 1);
        assertFalse(beside.getOk());
        assertEquals(disk.equals("ssd"), beside.getExcluded(), "the other may come: " + beside.getReason());
        app.askConstrained(1, 7, 0, Set.of("own"), null);
        app.heartbeat();
        control.await(e -> isAsk(e, 7, 0));
      }
    }
  }

  /** Asks for a container with a constraint, and tries to place it on the first machine. */
  private DirectiveResult tried(UnmanagedApp app, int request, AbstractConstraint constraint, int gpu) throws Exception {
    app.askConstrained(1, request, 1, Set.of("own"), constraint.build());
    app.heartbeat();
    control.await(e -> isAsk(e, request, 1));
    return control.carriedOut(place(app, request, node(0).toString(), List.of(gpu)));
  }

  private static AbstractConstraint onDisk(String kind) {
    return targetNodeAttribute(NODE, NodeAttributeOpCode.EQ, PlacementTargets.nodeAttribute("nm.yarn.io/disk", kind));
  }

  @Test
  void partitionsAreTheirs() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    CommonNodeLabelsManager labels = cluster.getResourceManager().getRMContext().getNodeLabelManager();
    labels.addToCluserNodeLabels(List.of(NodeLabel.newInstance("fast", true)));
    int from = control.count();
    labels.replaceLabelsOnNode(Map.of(NodeId.newInstance(node(0).getHost(), node(0).getPort()), Set.of("fast")));
    control.await(from, e -> e.hasNodeUp() && e.getNodeUp().getPartition().equals("fast"));
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      ask(app, 1, 5);
      DirectiveResult refused = control.carriedOut(place(app, 5, node(0).toString(), List.of(0)));
      assertTrue(refused.getReason().contains("the ask is for the default partition"), refused.getReason());
      assertFalse(refused.getMachineAtFault());
      DirectiveResult placed = control.carriedOut(place(app, 5, node(1).toString(), List.of(0)));
      assertTrue(placed.getOk(), placed.getReason());
    }
    Queue other = again().getQueuesList().stream().filter(q -> q.getPath().equals("root.other")).findFirst().orElseThrow();
    assertEquals(1.0, other.getPartitionsOrThrow("fast").getAbsoluteCapacity(), 1e-6);
  }

  @Test
  void anEndedContainerIsInTheSnapshotUntilItsProcessesAreGone() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      String id = running(app);
      Directive kill = directive().setKill(Kill.newBuilder().setContainerId(id).setReason("test")).build();
      assertEquals("", scheduler().carryOut(kill).getReason());
      GpuContainer ending = scheduler().snapshot(0).getContainers(0);
      assertEquals(id, ending.getContainerId());
      assertTrue(ending.getEnding());
      assertEquals(List.of(2), ending.getGpuIdsList());
    }
  }

  @Test
  void nodesWithoutOurExecutorGetNothing() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    Configuration required = new Configuration(conf);
    required.setBoolean(Managed.REQUIRE_EXECUTOR, true);
    scheduler().reinitialize(required, cluster.getResourceManager().getRMContext());
    Snapshot snapshot = control.awaitSnapshot(2);
    assertTrue(snapshot.getNodesList().stream().allMatch(n -> n.getWithheld().contains("no Isonomy executor")));
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      ask(app, 1, 5);
      DirectiveResult refused = control.carriedOut(place(app, 5, node(0).toString(), List.of(0)));
      assertTrue(refused.getReason().contains("no Isonomy executor"), refused.getReason());
      int from = control.count();
      attribute(node(0).getHost(), Map.of("isonomy-executor", "2"));
      control.await(from, e -> e.hasNodeUp() && e.getNodeUp().getWithheld().isEmpty());
      DirectiveResult placed = control.carriedOut(place(app, 5, node(0).toString(), List.of(0)));
      assertTrue(placed.getOk(), placed.getReason());
    }
  }

  @Test
  @Tag("off")
  void switchedOnBesideContainersThatRun() throws Exception {
    UnmanagedApp before = new UnmanagedApp(conf, "bob");
    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      cluster.waitForNodeManagersToConnect(20_000);
      before.ask(3, 5);
      before.ask(3, 5);
      before.heartbeatUntil(() -> before.allocated.size() == 2);
      Container untagged = before.allocated.get(0);
      app.ask(4, 7);
      app.heartbeat();
      QueueMetrics root = scheduler().getRootQueueMetrics();
      assertEquals(1, root.getPendingContainers());

      assertEquals("off", control.awaitSnapshot(1).getMode().getName());
      mode("on");
      Snapshot snapshot = control.awaitSnapshot(2);
      Node node = snapshot.getNodesList().stream()
          .filter(n -> n.getNodeId().equals(untagged.getNodeId().toString())).findFirst().orElseThrow();
      assertEquals(3, node.getUntaggedGpus());
      assertEquals(4, snapshot.getAsks(0).getGpus(), "what CapacityScheduler had not served is asked of us");
      assertEquals(1, root.getPendingContainers());
      ask(app, 1, 6);
      DirectiveResult refused = control.carriedOut(place(app, 6, untagged.getNodeId().toString(), List.of(3)));
      assertTrue(refused.getReason().contains("which ones is unknown"), refused.getReason());
      int from = control.count();
      before.close();
      control.await(from, e -> e.hasNodeUp() && e.getNodeUp().getNodeId().equals(node.getNodeId())
          && e.getNodeUp().getUntaggedGpus() == 0);

      mode("off");
      app.heartbeatUntil(() -> app.allocated.size() == 2);
      assertEquals(Set.of(6L, 7L), app.allocated.stream().map(Container::getAllocationRequestId).collect(toSet()),
          "CapacityScheduler serves what was held back");
      assertEquals(0, root.getPendingContainers());
    }
  }
}
