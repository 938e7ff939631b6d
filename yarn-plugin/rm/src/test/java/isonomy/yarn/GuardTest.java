package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Snapshot;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.service.Service;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.api.records.Priority;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Whatever of ours fails, the ResourceManager continues, and the control plane is told all in the end. */
@Timeout(120)
class GuardTest extends MiniYarn {
  @Test
  void nothingOfOursEndsTheResourceManager() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    UnmanagedApp old = new UnmanagedApp(conf, "alice");
    ask(old, 1, 5);
    DirectiveResult placed = control.carriedOut(place(old, 5, node(0).toString(), List.of(2)));
    old.heartbeatUntil(() -> !old.allocated.isEmpty());
    int before = control.snapshots();

    failing = true;
    old.launch(old.allocated.get(0), "exec sleep 100");
    old.ask(1, 6);
    old.ask(0, 7);
    old.heartbeatUntil(() -> old.allocated.size() > 1);
    assertEquals(7, old.allocated.get(1).getAllocationRequestId(), "what needs no GPUs is served");
    cluster.getResourceManager().getRMContext().getNodeAttributesManager().addNodeAttributes(Map.of(
        node(0).getHost(),
        Set.of(NodeAttribute.newInstance(NodeAttribute.PREFIX_CENTRALIZED, "k", NodeAttributeType.STRING, "v"))));
    old.yarn.updateApplicationPriority(old.id, Priority.newInstance(0));
    old.yarn.moveApplicationAcrossQueues(old.id, "other");
    cluster.getNodeManager(1).stop();
    UnmanagedApp during = new UnmanagedApp(conf, "bob");
    during.close();
    old.heartbeat();
    assertEquals(Service.STATE.STARTED, cluster.getResourceManager().getServiceState());

    failing = false;
    control.awaitSnapshot(before + 1);  // it takes the place of what was not told
    int known = control.snapshots();
    control.forget();
    Snapshot snapshot = control.awaitSnapshot(known + 1);
    assertEquals("root.other", snapshot.getApplicationsList().stream()
        .filter(a -> a.getAppId().equals(old.id.toString())).findFirst().orElseThrow().getQueue());
    assertTrue(snapshot.getAsksList().stream().anyMatch(a -> a.getAllocationRequestId() == 6), "the ask is known");
    assertTrue(snapshot.getContainersList().stream().anyMatch(c -> c.getContainerId().equals(placed.getContainerId())));
    old.close();
    control.await(e -> e.hasAppRemoved() && e.getAppRemoved().getAppId().equals(old.id.toString()));
  }
}
