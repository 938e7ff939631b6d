package isonomy.yarn;

import static java.util.stream.Collectors.toList;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.v1.Application;
import isonomy.wire.v1.Ask;
import isonomy.wire.v1.AttemptRemoved;
import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Ready;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The plugin's parts that need neither a scheduler nor a control plane: settings, messages, queues, ids, sockets. */
class PartsTest {
  private static Event.Builder event() {
    return Event.newBuilder().setReady(Ready.getDefaultInstance());
  }

  @Test
  void eventsStayUntilTheyAreAcknowledged() throws InterruptedException {
    EventQueue queue = new EventQueue(10);
    for (int i = 0; i < 4; i++) {
      queue.add(event());
    }
    assertEquals(List.of(1L, 2L, 3L), queue.peek(3, 0).stream().map(Event::getSeq).toList());
    queue.discard(2);
    assertEquals(List.of(3L, 4L), queue.peek(10, 0).stream().map(Event::getSeq).toList());
    queue.discard(4);
    assertTrue(queue.peek(10, 0).isEmpty());
  }

  @Test
  void oneRequestHasNotMoreThanSomeMegabytesOfEvents() throws InterruptedException {
    EventQueue queue = new EventQueue(10);
    queue.add(named(EventQueue.BYTES_AT_ONCE));
    queue.add(named(10));
    queue.add(named(EventQueue.BYTES_AT_ONCE - 100));
    queue.add(named(10));
    assertEquals(List.of(1L), queue.peek(10, 0).stream().map(Event::getSeq).toList(), "one in any case");
    queue.discard(1);
    assertEquals(List.of(2L, 3L, 4L), queue.peek(10, 0).stream().map(Event::getSeq).toList());
    queue.add(event());
    assertEquals(4, queue.peek(10, 0).size());
  }

  private static Event.Builder named(int length) {
    return Event.newBuilder().setAppAdded(Application.newBuilder().setName("n".repeat(length)));
  }

  @Test
  void aFullQueueAsksForASnapshotAndNeverBlocks() throws InterruptedException {
    EventQueue queue = new EventQueue(3);
    for (int i = 0; i < 4; i++) {
      queue.add(event());
    }
    assertTrue(queue.overflowed());
    assertTrue(queue.peek(10, 0).isEmpty());
    queue.add(event());
    assertEquals(5, queue.restart());
    assertFalse(queue.overflowed());
    queue.add(event());
    assertEquals(6, queue.peek(10, 0).get(0).getSeq());
  }

  @Test
  void gpusAreInUseUntilTheNodeManagerSaysOtherwise() {
    List<String> ended = new ArrayList<>();
    DrainingContainers ending = new DrainingContainers((container, end) -> ended.add(end.getContainerId()));
    for (String id : List.of("running", "unseen", "late", "forgotten")) {
      ending.begin(GpuContainer.newBuilder().setContainerId(id).setNodeId("n:1").build(),
          ContainerCompleted.newBuilder().setContainerId(id).build(), !id.equals("unseen") && !id.equals("late"), 0);
    }
    assertTrue(ending.all().stream().allMatch(GpuContainer::getEnding));
    ending.heartbeat("n:1", 10);
    ending.started("n:1", "late");
    ending.heartbeat("n:1", 20);
    assertEquals(List.of("unseen"), ended);
    ending.ended("running");
    ending.ended("late");
    assertEquals(List.of("forgotten"), ending.on("n:1").stream().map(GpuContainer::getContainerId).toList());
    ending.heartbeat("n:1", DrainingContainers.PATIENCE_MS + 1);
    assertEquals(List.of("unseen", "running", "late", "forgotten"), ended);
    assertTrue(ending.all().isEmpty());
    assertTrue(ending.isEmpty());
  }

  @Test
  void theLatestAskOfAKeyTakesThePlaceOfAWaitingOne() throws InterruptedException {
    EventQueue queue = new EventQueue(3);
    for (int i = 0; i < 1000; i++) {
      queue.add(ask(i % 2, i));
    }
    assertFalse(queue.overflowed());
    assertEquals(List.of(999L, 1000L), queue.peek(10, 0).stream().map(Event::getSeq).collect(toList()));
    assertEquals(List.of(998, 999), queue.peek(10, 0).stream().map(e -> e.getAsk().getCount()).collect(toList()));
    queue.discard(999);
    queue.add(ask(0, 7));
    queue.add(event());
    assertEquals(List.of(1000L, 1001L, 1002L), queue.peek(10, 0).stream().map(Event::getSeq).collect(toList()));
  }

  @Test
  void anAppsManyAsksHoldUpNobodyAndNoneIsLostUnlessItsAttemptEnds() throws InterruptedException {
    EventQueue queue = new EventQueue(100_000);
    for (int i = 0; i < 4000; i++) {
      queue.add(ask(i, 1));
    }
    queue.add(event());
    List<Event> first = queue.peek(1000, 0);
    assertEquals(EventQueue.ASKS_AT_ONCE + 1, first.size());
    assertTrue(first.get(EventQueue.ASKS_AT_ONCE).hasReady());
    Set<Long> asked = new HashSet<>();
    for (List<Event> some = first; asked.size() < 3000; some = queue.peek(1000, 0)) {
      some.stream().filter(Event::hasAsk).forEach(e -> asked.add(e.getAsk().getAllocationRequestId()));
      assertEquals(some.stream().map(Event::getSeq).sorted().toList(), some.stream().map(Event::getSeq).toList());
      queue.discard(some.get(some.size() - 1).getSeq());
    }
    queue.add(Event.newBuilder().setAttemptRemoved(AttemptRemoved.newBuilder().setAttemptId("a")));
    assertEquals(List.of(true), queue.peek(1000, 0).stream().map(Event::hasAttemptRemoved).toList());
  }

  @Test
  void anAskWhoseContainersAreGivenIsNeverToldAfterThem() throws InterruptedException {
    EventQueue queue = new EventQueue(100_000);
    for (int i = 0; i <= EventQueue.ASKS_AT_ONCE; i++) {
      queue.add(ask(i, 1));
    }
    queue.add(ask(7_000, 0));
    queue.add(Event.newBuilder().setContainerAllocated(GpuContainer.newBuilder().setAllocationRequestId(7_000)));
    List<Event> first = queue.peek(1000, 0);
    assertEquals(EventQueue.ASKS_AT_ONCE + 2, first.size());
    assertEquals(7_000, first.get(EventQueue.ASKS_AT_ONCE).getAsk().getAllocationRequestId());
    assertTrue(first.get(EventQueue.ASKS_AT_ONCE + 1).hasContainerAllocated());
  }

  @Test
  void oneUsersManyAsksDoNotKeepASnapshotFromBeingSent() {
    Ask ask = Ask.newBuilder().addOnlyOn("n".repeat(1000)).build();
    Map<String, List<Ask>> byUser = new HashMap<>(Map.of(
        "ann", List.of(ask), "trudy", Collections.nCopies(50, ask),
        "mallory", Collections.nCopies(90 * AskBook.KEYS_MAX, ask)));
    ClusterView.fit(byUser, 60_000);
    assertEquals(Set.of("ann", "trudy"), byUser.keySet());
    ClusterView.fit(byUser, 50_000);
    assertEquals(Set.of("ann"), byUser.keySet());
  }

  private static Event.Builder ask(int requestId, int count) {
    return Event.newBuilder().setAsk(Ask.newBuilder().setAttemptId("a").setAllocationRequestId(requestId).setCount(count));
  }

  @Test
  void mastersTagsThatNameGpusAreTakenOut() {
    SchedulingRequest request = SchedulingRequest.newBuilder().priority(Priority.newInstance(1)).allocationRequestId(1)
        .allocationTags(Set.of("gpu=0,1,2,3", "lease=r1.1.0", "own")).build();
    assertEquals(Set.of("gpu=2", "lease=L", "own"), Gpus.tags(List.of(2), "L", request), "also where they come late");
    Gpus.strip(request);
    assertEquals(Set.of("own"), request.getAllocationTags());
  }

  @Test
  void aTokenThatOthersMayReadIsRefused(@TempDir Path dir) throws IOException {
    Path file = dir.resolve("token");
    Configuration conf = new Configuration(false);
    conf.set("isonomy.bridge.token-file", file.toString());
    BridgeConfig config = new BridgeConfig(conf);
    assertTrue(assertThrows(IOException.class, config::token).getMessage().contains("cannot be read"));
    Files.writeString(file, "0123456789abcdef".repeat(4) + "\n");
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-r-----"));
    assertTrue(assertThrows(IOException.class, config::token).getMessage().contains("0600"));
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    assertEquals("0123456789abcdef".repeat(4), config.token());
  }

  @Test
  void theClientsSocketsDoNotWaitForAcknowledgements() throws IOException {
    InetAddress here = InetAddress.getLoopbackAddress();
    try (ServerSocket listening = new ServerSocket(0, 1, here);
        Socket socket = new Py4jControlPlane.NoDelay().createSocket(here, listening.getLocalPort())) {
      assertTrue(socket.getTcpNoDelay());
    }
  }
}
