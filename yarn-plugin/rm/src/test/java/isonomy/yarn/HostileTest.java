package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.GpuContainer;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.UpdateContainerError;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.util.Records;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Masters that want more than their leases. */
@Timeout(120)
class HostileTest extends MiniYarn {
  @Override
  void configure(Configuration c) {
    c.setBoolean(YarnConfiguration.OPPORTUNISTIC_CONTAINER_ALLOCATION_ENABLED, true);
  }

  @Test
  void tagsOfAMasterNameNoGpus() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp mallory = new UnmanagedApp(conf, "mallory"); UnmanagedApp alice = new UnmanagedApp(conf, "alice")) {
      // Without GPUs, through CapacityScheduler.
      mallory.askConstrained(0, 7, 1, Set.of("gpu=0,1,2,3", "lease=r1.1.0", "own"));
      mallory.heartbeatUntil(() -> !mallory.allocated.isEmpty());
      Container container = mallory.allocated.get(0);
      assertEquals(Set.of("own"), UnmanagedApp.token(container).getAllcationTags());
      ask(alice, 1, 5);
      DirectiveResult placed = control.carriedOut(place(alice, 5, container.getNodeId().toString(), List.of(2)));
      assertTrue(placed.getOk(), placed.getReason());

      // With a GPU, placed by the control plane.
      mallory.askConstrained(1, 8, 1, Set.of("gpu=1", "lease=\"\n", "own"));
      mallory.heartbeat();
      control.await(e -> isAsk(e, 8, 1));
      DirectiveResult given = control.carriedOut(place(mallory, 8, container.getNodeId().toString(), List.of(3)));
      assertTrue(given.getOk(), given.getReason());
      GpuContainer told = control.await(e -> e.hasContainerAllocated()
          && e.getContainerAllocated().getContainerId().equals(given.getContainerId())).getContainerAllocated();
      assertEquals(List.of(3), told.getGpuIdsList());
      mallory.heartbeatUntil(() -> mallory.allocated.size() > 1);
      assertEquals(Set.of("gpu=3", "lease=lease-8", "own"), UnmanagedApp.token(mallory.allocated.get(1)).getAllcationTags());
    }
  }

  @Test
  void neitherOpportunisticNorDemotedNorUnderTooManyKeys() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp mallory = new UnmanagedApp(conf, "mallory")) {
      ask(mallory, 1, 5);
      assertTrue(control.carriedOut(place(mallory, 5, node(0).toString(), List.of(2))).getOk());
      mallory.heartbeatUntil(() -> !mallory.allocated.isEmpty());
      Container container = mallory.allocated.get(0);
      mallory.launch(container, "exec sleep 100");
      control.await(e -> e.hasContainerRunning());
      mallory.demote(container);
      List<UpdateContainerError> errors = new ArrayList<>();
      for (int i = 0; i < 20 && errors.isEmpty(); i++) {
        AllocateResponse response = mallory.heartbeat();
        errors.addAll(response.getUpdateErrors());
        assertTrue(response.getUpdatedContainers().isEmpty());
      }
      assertTrue(errors.get(0).getReason().contains("cannot be changed"), errors.toString());
    }
    try (UnmanagedApp mallory = new UnmanagedApp(conf, "mallory")) {
      mallory.askOpportunistic(1, 6);
      String why = assertThrows(InvalidResourceRequestException.class, mallory::heartbeat).getMessage();
      assertTrue(why.contains("OPPORTUNISTIC"), why);
    }
    try (UnmanagedApp mallory = new UnmanagedApp(conf, "mallory"); UnmanagedApp alice = new UnmanagedApp(conf, "alice")) {
      for (int i = 0; i <= AskBook.KEYS_MAX; i++) {
        mallory.ask(1, 100 + i);
      }
      String why = assertThrows(InvalidResourceRequestException.class, mallory::heartbeat).getMessage();
      assertTrue(why.contains("at most " + AskBook.KEYS_MAX), why);
      ask(alice, 1, 5_000_000);
    }
    assertEquals(1, control.snapshots(), "nothing overflowed");
  }

  @Test
  void hugeCountsStrictPlacesAndALongName() throws Exception {
    control.awaitSnapshot(1);
    cluster.waitForNodeManagersToConnect(20_000);
    try (UnmanagedApp mallory = new UnmanagedApp(conf, "mallory"); UnmanagedApp alice = new UnmanagedApp(conf, "alice")) {
      mallory.askConstrained(1, 7, Integer.MAX_VALUE, Set.of("x"));
      mallory.heartbeat();
      control.await(e -> isAsk(e, 7, AskBook.TOLD_MAX));
      alice.askOnlyOn(1, 5, "elsewhere");
      alice.heartbeat();
      assertEquals(List.of("elsewhere"), control.await(e -> isAsk(e, 5, 1)).getAsk().getOnlyOnList());
      DirectiveResult refused = control.carriedOut(place(alice, 5, node(1).toString(), List.of(0)));
      assertFalse(refused.getOk());
      assertTrue(refused.getReason().contains("limited to [elsewhere]"), refused.getReason());
      assertFalse(refused.getExcluded());
      alice.askOnlyOn(1, 6, node(1).getHost());
      alice.heartbeat();
      control.await(e -> isAsk(e, 6, 1));
      DirectiveResult placed = control.carriedOut(place(alice, 6, node(1).toString(), List.of(0)));
      assertTrue(placed.getOk(), placed.getReason());

      ApplicationSubmissionContext app = mallory.yarn.createApplication().getApplicationSubmissionContext();
      app.setApplicationName("n".repeat(1 << 20));
      app.setQueue("default");
      app.setUnmanagedAM(true);
      app.setResource(UnmanagedApp.resource(0));
      app.setAMContainerSpec(Records.newRecord(ContainerLaunchContext.class));
      mallory.yarn.submitApplication(app);
      assertEquals("n".repeat(256), control.await(e -> e.hasAppAdded()
          && e.getAppAdded().getAppId().equals(app.getApplicationId().toString())).getAppAdded().getName());

      alice.blacklist(node(1).getHost());
      ask(alice, 1, 8);
      refused = control.carriedOut(place(alice, 8, node(1).toString(), List.of(1)));
      assertTrue(refused.getExcluded(), refused.getReason());
      assertFalse(refused.getMachineAtFault());
    }
  }
}
