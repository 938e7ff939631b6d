package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.GpuContainer;
import isonomy.wire.v1.Ready;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

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
  void aDirectiveIsCarriedOutOnce() {
    DirectiveLog log = new DirectiveLog(2);
    AtomicInteger done = new AtomicInteger();
    for (int i = 0; i < 3; i++) {
      DirectiveResult result = log.once("a", () -> {
        done.incrementAndGet();
        return DirectiveResult.newBuilder().setOk(true);
      });
      assertEquals("a", result.getDirectiveId());
      assertTrue(result.getOk());
    }
    assertEquals(1, done.get());
    log.once("b", DirectiveResult::newBuilder);
    log.once("a", DirectiveResult::newBuilder);
    log.once("c", DirectiveResult::newBuilder);
    assertTrue(log.once("a", DirectiveResult::newBuilder).getOk(), "the longest unused one is forgotten first");
  }

  @Test
  void gpusAreInUseUntilTheNodeManagerSaysOtherwise() {
    List<String> ended = new ArrayList<>();
    EndingContainers ending = new EndingContainers(c -> ended.add(c.getContainerId()));
    for (String id : List.of("running", "unseen", "late", "forgotten")) {
      ending.begin(GpuContainer.newBuilder().setContainerId(id).setNodeId("n:1").build(),
          ContainerCompleted.newBuilder().setContainerId(id).build(), !id.equals("unseen") && !id.equals("late"), 0);
    }
    ending.heartbeat("n:1", 10);
    ending.started("n:1", "late");
    ending.heartbeat("n:1", 20);
    assertEquals(List.of("unseen"), ended);
    ending.ended("running");
    ending.ended("late");
    assertEquals(List.of("forgotten"), ending.on("n:1").stream().map(GpuContainer::getContainerId).toList());
    ending.heartbeat("n:1", EndingContainers.PATIENCE_MS + 1);
    assertEquals(List.of("unseen", "running", "late", "forgotten"), ended);
    assertTrue(ending.all().isEmpty());
  }

  @Test
  void tagsCarryGpuIds() {
    Set<String> tags = Gpus.tags(List.of(2, 0), "lease-1");
    assertEquals(Set.of("gpu=0,2", "lease=lease-1"), tags);
    assertEquals(List.of(0, 2), Gpus.ids(tags));
    assertEquals("lease-1", Gpus.lease(tags));
    assertEquals(List.of(), Gpus.ids(Set.of("gpu=x")));
    assertEquals(List.of(), Gpus.ids(null));
  }

  @Test
  void aTokenThatOthersMayReadIsRefused(@TempDir Path dir) throws IOException {
    Path file = dir.resolve("token");
    BridgeConfig config = new BridgeConfig("127.0.0.1", 1, file, 1);
    assertTrue(assertThrows(IOException.class, config::token).getMessage().contains("cannot be read"));
    Files.writeString(file, "0123456789abcdef".repeat(4) + "\n");
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-r-----"));
    assertTrue(assertThrows(IOException.class, config::token).getMessage().contains("0600"));
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    assertEquals("0123456789abcdef".repeat(4), config.token());
  }
}
