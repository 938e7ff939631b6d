package isonomy.nm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class GpuGateTest {
  private final GpuGate gate = new GpuGate();

  @Test
  void aContainerWaitsUntilTheOtherHasLeft() throws Exception {
    GpuUse first = new GpuUse("c1", List.of(0, 1), "a");
    GpuUse second = new GpuUse("c2", List.of(1, 2), "b");
    assertNull(gate.enter(first, 0));
    CompletableFuture<String> waiting = CompletableFuture.supplyAsync(() -> {
      try {
        return gate.enter(second, 10_000);
      } catch (InterruptedException e) {
        throw new IllegalStateException(e);
      }
    });
    gate.leave(first);
    assertNull(waiting.get(10, TimeUnit.SECONDS));
  }

  @Test
  void theHolderIsNamedWhenTheTimeIsOver() throws Exception {
    assertNull(gate.enter(new GpuUse("c1", List.of(0), "a"), 0));
    assertEquals("c1", gate.enter(new GpuUse("c2", List.of(0), "b"), 1));
  }

  @Test
  void tagsOfTheTokenBecomeVisibleDevices() {
    GpuUse use = GpuUse.of("c1", Set.of("gpu=0,2", "lease=r1.2"));
    assertEquals("0,2", use.visibleDevices());
    assertEquals("r1.2", use.lease());
    assertEquals("", GpuUse.of("c2", Set.of("gpu=x;rm", "other")).visibleDevices());
  }
}
