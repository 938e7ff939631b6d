package isonomy.nm;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Admits one container per GPU: the ResourceManager may give a GPU to a new container while the old one's processes are
 * still ending, so the new one waits here until they are gone.
 */
final class GpuGate {
  private final Map<Integer, String> holders = new HashMap<>();

  /**
   * Takes all GPUs of a container, or none.
   *
   * @return the container that still held one of them at the timeout; null on success
   */
  synchronized String enter(GpuUse use, long timeoutMs) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (true) {
      String other = holder(use);
      if (other == null) {
        use.gpuIds().forEach(g -> holders.put(g, use.container()));
        return null;
      }
      long leftMs = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      if (leftMs <= 0) {
        return other;
      }
      wait(leftMs);
    }
  }

  synchronized void leave(GpuUse use) {
    holders.values().removeIf(use.container()::equals);
    notifyAll();
  }

  private String holder(GpuUse use) {
    return use.gpuIds().stream().map(holders::get).filter(c -> c != null && !c.equals(use.container())).findFirst()
        .orElse(null);
  }
}
