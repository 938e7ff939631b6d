package isonomy.yarn;

import static java.util.stream.Collectors.toMap;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.GpuTag;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.Container;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** GPU ids of containers that the control plane did not place. */
@Timeout(120)
class GpuIdsTest extends MiniYarn {
  @Test
  @Tag("off")
  void whatExecutorsAllottedBeforeIsLearned() throws Exception {
    try (UnmanagedApp before = new UnmanagedApp(conf, "bob"); UnmanagedApp app = new UnmanagedApp(conf, "alice")) {
      cluster.waitForNodeManagersToConnect(20_000);
      before.ask(2, 5);
      before.heartbeatUntil(() -> before.allocated.size() == 1);
      Container old = before.allocated.get(0);
      control.awaitSnapshot(1);
      mode("on");
      control.awaitSnapshot(2);
      ask(app, 1, 6);
      String node = old.getNodeId().toString();
      assertTrue(control.carriedOut(place(app, 6, node, List.of(3))).getReason().contains("which ones is unknown"));

      int from = control.count();
      allotted(old, 0);
      control.await(from, e -> e.hasNodeUp() && e.getNodeUp().getUntaggedGpus() == 2);
      allotted(old, 0, 1);
      GpuContainer known = control.await(from, Event::hasContainerRunning).getContainerRunning();
      assertEquals(List.of(0, 1), known.getGpuIdsList());
      assertEquals("", known.getLeaseId());
      control.await(from, e -> e.hasNodeUp() && e.getNodeUp().getNodeId().equals(node) && e.getNodeUp().getUntaggedGpus() == 0);
      assertTrue(control.carriedOut(place(app, 6, node, List.of(1))).getReason().contains("GPU 1 is in use"));
      DirectiveResult placed = control.carriedOut(place(app, 6, node, List.of(3)));
      assertTrue(placed.getOk(), placed.getReason());
    }
  }

  @Test
  void onAndOffTwentyTimesLosesNoContainer() throws Exception {
    cluster.waitForNodeManagersToConnect(20_000);
    attribute(node(0).getHost(), Map.of("isonomy-executor", "3"));
    try (UnmanagedApp leased = new UnmanagedApp(conf, "alice"); UnmanagedApp plain = new UnmanagedApp(conf, "bob")) {
      ask(leased, 1, 1);
      assertTrue(control.carriedOut(place(leased, 1, node(0).toString(), List.of(3))).getOk());
      leased.heartbeatUntil(() -> leased.allocated.size() == 1);
      leased.launch(leased.allocated.get(0), "sleep 600");
      Set<String> held = new HashSet<>(Set.of(node(0) + "=[3]"));
      for (int i = 0; i < 20; i++) {
        change("off");
        if (i < 6) {
          int wanted = i + 1;
          plain.ask(1, 10 + i);
          plain.heartbeatUntil(() -> plain.allocated.size() == wanted);
          Container container = plain.allocated.get(i);
          GpuTag tag = GpuTag.read(UnmanagedApp.token(container).getAllcationTags(), 1);
          assertTrue(held.add(container.getNodeId() + "=" + tag.gpuIds()), held + " and " + tag.gpuIds());
          assertEquals("", tag.lease());
          plain.launch(container, "sleep 600");
        }
        change("on");
        leased.heartbeat();
        plain.heartbeat();
      }
      assertEquals(List.of(), leased.completed);
      assertEquals(List.of(), plain.completed);
      assertEquals(7, scheduler().snapshot(0).getContainersList().stream().filter(c -> c.getGpuIdsCount() == 1).count());
    }
  }

  private void change(String mode) throws Exception {
    mode(mode);
  }

  /** The NodeManager of a container reports which GPUs its executor has allotted. */
  private void allotted(Container container, int... ids) throws Exception {
    attribute(container.getNodeId().getHost(), Arrays.stream(ids).boxed()
        .collect(toMap(id -> "isonomy-gpu-" + id, id -> container.getId().toString())));
  }
}
