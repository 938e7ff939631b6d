package isonomy.yarn;

import static java.util.stream.Collectors.toList;
import static java.util.stream.Collectors.toSet;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import isonomy.wire.v1.Ask;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Kill;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.Preempt;
import isonomy.wire.v1.Queue;
import isonomy.wire.v1.Snapshot;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.nodelabels.NodeAttributesManager;
import org.apache.hadoop.yarn.webapp.util.WebAppUtils;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The scheduler in a real YARN of one JVM. */
@Timeout(120)
class MiniYarnTest extends MiniYarn {
  private HttpResponse<String> rest(String method, String path) throws Exception {
    return rest(method, path, "X-Requested-By");
  }

  private HttpResponse<String> rest(String method, String path, String header) throws Exception {
    String address = WebAppUtils.getRMWebAppURLWithoutScheme(
        cluster.getResourceManager().getConfig());
    String base = "http://" + address + "/ws/v1/cluster/";
    return HttpClient.newHttpClient().send(
        HttpRequest.newBuilder(URI.create(base + path)).method(method, HttpRequest.BodyPublishers.noBody())
            .header(header, "test").build(),
        HttpResponse.BodyHandlers.ofString());
  }

  @Test
  void gpusGoWhereTheControlPlaneSaysAndOnlyThere() throws Exception {
    Snapshot first = control.awaitSnapshot(1);
    String node = first.getNodesCount() > 1 ? first.getNodes(1).getNodeId()
        : control.await(Event::hasNodeUp).getNodeUp().getNodeId();
    assertEquals(Set.of("root", "root.default", "root.other"),
        first.getQueuesList().stream().map(Queue::getPath).collect(toSet()));

    try (UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      assertEquals("root.default", control.await(e -> e.hasAppAdded()
          && e.getAppAdded().getAppId().equals(app.id.toString())).getAppAdded().getQueue());
      control.await(e -> e.hasAttemptAdded() && e.getAttemptAdded().getAttemptId().equals(app.attempt.toString()));

      // Without GPUs as usual; with GPUs held back.
      app.ask(0, 4);
      app.ask(2, 5);
      app.heartbeatUntil(() -> !app.allocated.isEmpty());
      assertEquals(4, app.allocated.get(0).getAllocationRequestId());
      assertEquals(2, control.await(e -> isAsk(e, 5, 1)).getAsk().getGpus());
      assertEquals(1, app.allocated.size());

      // Placed with exact tags, once.
      Directive place = place(app, 5, node, List.of(1, 3));
      DirectiveResult placed = control.carriedOut(place);
      assertTrue(placed.getOk(), placed.getReason());
      assertEquals(placed, control.carriedOut(place));
      control.await(e -> isAsk(e, 5, 0));
      app.heartbeatUntil(() -> app.allocated.size() > 1);
      Container container = app.allocated.get(1);
      assertEquals(placed.getContainerId(), container.getId().toString());
      assertEquals(node, container.getNodeId().toString());
      assertEquals(Set.of("gpu=1,3", "lease=lease-5"), UnmanagedApp.token(container).getAllcationTags());
      assertEquals(2, app.allocated.size());

      refusals(app, node);
      running(app, container, placed.getContainerId());
    }
    assertEquals("SUCCEEDED", control.await(Event::hasAppRemoved).getAppRemoved().getFinalState());
    UnmanagedApp failing = new UnmanagedApp(conf, "alice");
    failing.close(FinalApplicationStatus.FAILED);
    assertEquals("FAILED", control.await(e -> e.hasAppRemoved()
        && e.getAppRemoved().getAppId().equals(failing.id.toString())).getAppRemoved().getFinalState());
    rest();
  }

  private void refusals(UnmanagedApp app, String node) throws Exception {
    app.ask(1, 6);
    app.heartbeat();
    control.await(e -> isAsk(e, 6, 1));
    DirectiveResult taken = control.carriedOut(place(app, 6, node, List.of(3)));
    assertFalse(taken.getOk());
    assertTrue(taken.getReason().contains("GPU 3 is in use"), taken.getReason());
    for (Directive wrong : List.of(
        place(app, 6, node, List.of(9)), place(app, 6, node, List.of(0, 2)), place(app, 99, node, List.of(0)),
        place(app, 6, "nowhere:1", List.of(0)))) {
      DirectiveResult refused = control.carriedOut(wrong);
      assertFalse(refused.getOk());
      assertFalse(refused.getReason().isEmpty());
    }
  }

  private void running(UnmanagedApp app, Container container, String id) throws Exception {
    app.launch(container, "exec sleep 60");
    control.await(e -> e.hasContainerRunning() && e.getContainerRunning().getContainerId().equals(id));

    // A control plane that was started again learns everything.
    int before = control.snapshots();
    control.forget();
    Snapshot again = control.awaitSnapshot(before + 1);
    assertTrue(again.getReady());
    GpuContainer known = again.getContainersList().get(0);
    assertEquals(List.of(1, 3), known.getGpuIdsList());
    assertEquals("lease-5", known.getLeaseId());
    assertEquals(List.of(6L), again.getAsksList().stream().map(a -> a.getAllocationRequestId()).toList());

    assertTrue(control.carriedOut(directive().setPreempt(Preempt.newBuilder().setContainerId(id)).build()).getOk());
    app.heartbeatUntil(() -> app.preemptionAnnounced);
    Kill.Builder kill = Kill.newBuilder().setContainerId(id).setReason("the lease ended").setAgain(true);
    assertTrue(control.carriedOut(directive().setKill(kill).build()).getOk());
    app.heartbeatUntil(() -> app.completed.stream().anyMatch(s -> s.getContainerId().equals(container.getId())));
    assertEquals(ContainerExitStatus.ABORTED, app.completed.get(0).getExitStatus());
    assertTrue(app.completed.get(0).getDiagnostics().contains("the lease ended"));
    Event end = control.await(e -> e.hasContainerCompleted()
        && e.getContainerCompleted().getContainerId().equals(id));
    assertEquals(ContainerExitStatus.ABORTED, end.getContainerCompleted().getExitStatus());
    String nodeId = container.getNodeId().toString();
    DirectiveResult next = control.carriedOut(place(app, 6, nodeId, List.of(3)));
    assertTrue(next.getOk(), next.getReason());
  }

  private void rest() throws Exception {
    HttpResponse<String> answer = rest("GET", "isonomy/explain?app=x&user.name=alice");
    assertEquals(200, answer.statusCode());
    assertEquals("{\"path\": \"explain\"}", answer.body());
    assertEquals("alice", control.lastQuery().getUser());
    assertFalse(control.lastQuery().getAdmin());
    assertEquals("x", control.lastQuery().getParametersOrThrow("app"));
    assertEquals(1, control.lastQuery().getParametersCount());

    assertEquals("nosniff", answer.headers().firstValue("X-Content-Type-Options").orElse(""));
    assertEquals(List.of("no-store"), answer.headers().allValues("Cache-Control"));

    HttpResponse<String> forged = rest("POST", "isonomy/pause?user.name=root-of-test", "X-Other");
    assertEquals(403, forged.statusCode());
    assertTrue(forged.body().contains("X-Requested-By"), forged.body());
    assertEquals("GET", control.lastQuery().getMethod());
    assertEquals(200, rest("POST", "isonomy/pause?user.name=root-of-test").statusCode());
    assertEquals("POST", control.lastQuery().getMethod());
    assertTrue(control.lastQuery().getAdmin());

    assertEquals(200, rest("GET", "isonomy/status").statusCode());
    assertEquals("", control.lastQuery().getUser());
    assertEquals(200, rest("GET", "info").statusCode());

    control.setAway(true);
    HttpResponse<String> without = rest("GET", "isonomy/status");
    assertEquals(503, without.statusCode());
    assertTrue(new ObjectMapper().readTree(without.body()).get("error").asText()
        .startsWith("no answer from the control plane"), without.body());
  }

  @Test
  void attributesOfNodesAreToldWhenTheyChange() throws Exception {
    String reported = "nm.yarn.io/bad-gpus";
    String set = "rm.yarn.io/bad-gpus";
    cluster.waitForNodeManagersToConnect(20_000);
    NodeId node = cluster.getNodeManager(0).getNMContext().getNodeId();
    String host = node.getHost();
    NodeAttributesManager manager = cluster.getResourceManager().getRMContext().getNodeAttributesManager();
    // What a NodeManager reports.
    manager.replaceNodeAttributes(
        NodeAttribute.PREFIX_DISTRIBUTED, attribute(host, NodeAttribute.PREFIX_DISTRIBUTED, "1_3"));
    control.await(e -> tells(e, node) && e.getNodeUp().getAttributesMap().equals(Map.of(reported, "1_3")));
    // What an operator sets, and sets again.
    for (String value : List.of("0", "2")) {
      int from = control.count();
      manager.addNodeAttributes(attribute(host, NodeAttribute.PREFIX_CENTRALIZED, value));
      Node told = control.await(from, e -> tells(e, node) && e.getNodeUp().containsAttributes(set)).getNodeUp();
      assertEquals(Map.of(reported, "1_3", set, value), told.getAttributesMap());
      assertEquals(4, told.getGpus());
    }
    int before = control.snapshots();
    control.forget();
    for (Node known : control.awaitSnapshot(before + 1).getNodesList()) {
      assertEquals("2", known.getAttributesOrThrow(set));
    }
    int from = control.count();
    manager.removeNodeAttributes(attribute(host, NodeAttribute.PREFIX_CENTRALIZED, "2"));
    control.await(from, e -> tells(e, node) && !e.getNodeUp().containsAttributes(set));
  }

  private static boolean tells(Event e, NodeId node) {
    return e.hasNodeUp() && e.getNodeUp().getNodeId().equals(node.toString());
  }

  private static Map<String, Set<NodeAttribute>> attribute(String host, String prefix, String value) {
    return Map.of(host, Set.of(NodeAttribute.newInstance(prefix, "bad-gpus", NodeAttributeType.STRING, value)));
  }

  @Test
  @Tag("shadow")
  void aShadowHearsEverythingAndTouchesNothing() throws Exception {
    Snapshot first = control.awaitSnapshot(1);
    assertTrue(first.getShadow());
    assertFalse(first.getReady());
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp app = new UnmanagedApp(conf, "bob")) {
      control.await(e -> e.hasAppAdded() && e.getAppAdded().getAppId().equals(app.id.toString()));
      app.ask(2, 5);
      app.heartbeatUntil(() -> !app.allocated.isEmpty());
      Container container = app.allocated.get(0);
      String id = container.getId().toString();
      assertEquals(Set.of(), UnmanagedApp.token(container).getAllcationTags());
      app.launch(container, "exec sleep 60");
      control.await(e -> e.hasContainerRunning() && e.getContainerRunning().getContainerId().equals(id));

      // What waits at CapacityScheduler is told, as it is now, and not held. What it serves at once may never be told.
      ContainerRequest withdrawn = app.askOnlyOn(1, 8, "elsewhere");
      app.heartbeat();
      control.await(e -> isAsk(e, 8, 1));
      app.withdraw(withdrawn);
      app.heartbeat();
      control.await(e -> isAsk(e, 8, 0));
      app.askOnlyOn(1, 9, "elsewhere");
      app.heartbeat();
      control.await(e -> e.hasAsk() && e.getAsk().getAllocationRequestId() == 9 && e.getAsk().getCount() == 1
          && e.getAsk().getOnlyOnList().equals(List.of("elsewhere")));

      // Whatever a control plane says that does not know better is refused, each for the same reason.
      for (Directive told : List.of(
          place(app, 5, node(0).toString(), List.of(0)),
          directive().setPreempt(Preempt.newBuilder().setContainerId(id)).build(),
          directive().setKill(Kill.newBuilder().setContainerId(id).setReason("shadow")).build())) {
        DirectiveResult refused = control.carriedOut(told);
        assertFalse(refused.getOk());
        assertTrue(refused.getReason().contains("shadow"), refused.getReason());
      }
      for (int i = 0; i < 5; i++) {
        app.heartbeat();
      }
      assertFalse(app.preemptionAnnounced);
      assertTrue(app.completed.isEmpty());
      int before = control.snapshots();
      control.forget();
      Snapshot again = control.awaitSnapshot(before + 1);
      assertFalse(again.getReady());
      assertEquals(List.of(id), again.getContainersList().stream().map(GpuContainer::getContainerId).collect(toList()));
      assertEquals(List.of(9L), again.getAsksList().stream().map(Ask::getAllocationRequestId).collect(toList()));
      assertEquals(200, rest("GET", "isonomy/status").statusCode());

      // On: what waits is held from here on, and what runs stays.
      mode("on");
      assertTrue(control.awaitSnapshot(before + 2).getReady());
      ask(app, 1, 7);
      assertEquals(1, app.allocated.size());
      mode("shadow");
      assertFalse(control.awaitSnapshot(before + 3).getReady());
      app.heartbeatUntil(() -> app.allocated.size() > 1);
      assertTrue(app.completed.isEmpty());
    }
  }

  @Test
  @Tag("off")
  void offIsPlainCapacityScheduler() throws Exception {
    try (UnmanagedApp app = new UnmanagedApp(conf, "bob")) {
      app.ask(1, 5);
      app.heartbeatUntil(() -> !app.allocated.isEmpty());
      assertEquals(1, Gpus.of(app.allocated.get(0).getResource()));
    }
    Snapshot told = control.awaitSnapshot(1);
    assertEquals("off", told.getMode().getName());
    assertFalse(told.getReady() || told.getShadow() || told.getNodesCount() + told.getApplicationsCount() > 0);
    assertEquals(200, rest("GET", "isonomy/status").statusCode());
    for (HttpResponse<String> refused : List.of(
        rest("POST", "isonomy/pause"), rest("GET", "isonomy/token"), rest("GET", "isonomy/token/"))) {
      assertEquals(503, refused.statusCode());
      assertTrue(refused.body().contains("the mode is off"), refused.body());
    }
    control.setAway(true);
    assertEquals(503, rest("GET", "isonomy/status").statusCode());
    assertTrue(rest("GET", "isonomy/metrics").body().contains("isonomy_mode{mode=\"off\"} 1"));
  }

  @Test
  @Tag("off")
  void theModeIsSwitchedWithoutAControlPlaneAndOutlivesTheResourceManager() throws Exception {
    control.setAway(true);
    JsonNode before = new ObjectMapper().readTree(rest("GET", "isonomy/mode").body());
    assertEquals("off", before.get("mode").asText());
    assertEquals("the upgrade, from isonomy.scheduler.mode", before.get("by").asText());
    assertEquals(Managed.MODE, before.get("obsolete").get(0).asText());
    assertEquals(403, rest("POST", "isonomy/mode?mode=on&user.name=alice").statusCode());
    for (String wrong : List.of("mode=dark", "mode=on&queues=other", "mode=on&queues=root.other%0AX", "queues=root")) {
      assertEquals(400, rest("POST", "isonomy/mode?" + wrong + "&user.name=root-of-test").statusCode(), wrong);
    }
    assertFalse(scheduler().managed.isOn());
    assertEquals(403, rest("POST", "isonomy/mode?mode=on&user.name=root-of-test", "X-Other").statusCode());

    String on = rest("POST", "isonomy/mode?mode=on&queues=root.other&user.name=root-of-test").body();
    JsonNode switched = new ObjectMapper().readTree(on);
    assertEquals("on", switched.get("mode").asText());
    assertEquals("root-of-test", switched.get("by").asText());
    assertTrue(scheduler().managed.has("root.other"));
    assertFalse(scheduler().managed.has("root.default"));
    assertTrue(scheduler().ready());

    // What yarn-site.xml says counts no more.
    scheduler().reinitialize(conf, cluster.getResourceManager().getRMContext());
    assertTrue(scheduler().managed.places());
    cluster.restartResourceManager(0);
    JsonNode after = new ObjectMapper().readTree(rest("GET", "isonomy/mode").body());
    assertEquals(switched, after);
    assertTrue(scheduler().managed.has("root.other"));
    assertFalse(scheduler().managed.has("root.default"));
    assertEquals(503, rest("GET", "isonomy/metrics").statusCode(), "in mode on a stopped control plane is a fault");
  }

  @Test
  @Tag("unreadable")
  void whileTheModeIsUnreadableNothingIsPlacedAndNothingEnds() throws Exception {
    Snapshot told = control.awaitSnapshot(1);
    assertEquals("unreadable", told.getMode().getName());
    assertTrue(told.getMode().getProblem().contains("isonomy-mode.json"), told.getMode().getProblem());
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp app = new UnmanagedApp(conf, "bob")) {
      ask(app, 1, 5);
      app.ask(0, 6);
      app.heartbeatUntil(() -> !app.allocated.isEmpty());
      assertEquals(6, app.allocated.get(0).getAllocationRequestId(), "what needs no GPUs is served");
      DirectiveResult refused = control.carriedOut(place(app, 5, node(0).toString(), List.of(0)));
      assertTrue(refused.getReason().contains("unreadable"), refused.getReason());
      assertFalse(scheduler().ready());
      HttpResponse<String> unnamed = rest("POST", "isonomy/mode?mode=on&user.name=root-of-test");
      assertEquals(400, unnamed.statusCode());
      assertTrue(unnamed.body().contains("the stored ones cannot be read"), unnamed.body());
      assertEquals(200, rest("POST", "isonomy/mode?mode=off&user.name=root-of-test").statusCode());
      app.heartbeatUntil(() -> app.allocated.size() == 2);
      assertTrue(app.completed.isEmpty());
    }
  }
}
