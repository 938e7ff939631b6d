package isonomy.nm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** One container a GPU at a time. */
class GpuGateTest {
  private final GpuGate gate = new GpuGate();

  @Test
  void aContainerWaitsUntilTheOtherHasLeft() throws Exception {
    GpuUse first = Tokens.use(1, 2, "gpu=0,1;lease=a");
    GpuUse second = Tokens.use(2, 2, "gpu=1,2;lease=b");
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
    assertNull(gate.enter(Tokens.use(1, 1, "gpu=0;lease=a"), 0));
    assertEquals(Tokens.id(1).toString(), gate.enter(Tokens.use(2, 1, "gpu=0;lease=b"), 1));
  }
}
