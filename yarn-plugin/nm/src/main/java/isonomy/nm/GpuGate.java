package isonomy.nm;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Admits one container per GPU: the ResourceManager may give a GPU to a new container while the old one's processes are
 * still ending, so the new one waits here until they are gone.
 */
final class GpuGate {
  /** The end of a container that never entered is not told. */
  private static final long LOOK_AGAIN_MS = 1_000;
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

  /**
   * The highest ids that no container has, in their order; null if there are too few at the timeout.
   *
   * @param gpus how many
   * @param total GPUs of the machine
   * @param named the ids of containers that have not entered yet
   */
  synchronized List<Integer> free(int gpus, int total, Supplier<Set<Integer>> named, long timeoutMs)
      throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (true) {
      Set<Integer> taken = named.get();
      taken.addAll(holders.keySet());
      List<Integer> free = new ArrayList<>();
      for (int id = total - 1; id >= 0 && free.size() < gpus; id--) {
        if (!taken.contains(id)) {
          free.add(0, id);
        }
      }
      long leftMs = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      if (free.size() == gpus || leftMs <= 0) {
        return free.size() == gpus ? free : null;
      }
      wait(Math.min(leftMs, LOOK_AGAIN_MS));
    }
  }

  private String holder(GpuUse use) {
    return use.gpuIds().stream().map(holders::get).filter(c -> c != null && !c.equals(use.container())).findFirst()
        .orElse(null);
  }
}
