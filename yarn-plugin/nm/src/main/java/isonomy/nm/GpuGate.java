package isonomy.nm;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

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
    String other = await(() -> holder(use), Objects::isNull, timeoutMs);
    if (other == null) {
      use.gpuIds.forEach(g -> holders.put(g, use.container));
    }
    return other;
  }

  synchronized void leave(GpuUse use) {
    holders.values().removeIf(use.container::equals);
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
    List<Integer> free = await(() -> {
      Set<Integer> taken = named.get();
      taken.addAll(holders.keySet());
      return IntStream.range(0, total).filter(id -> !taken.contains(id)).boxed().collect(Collectors.toList());
    }, ids -> ids.size() >= gpus, timeoutMs);
    return free.size() < gpus ? null : free.subList(free.size() - gpus, free.size());
  }

  /** Looks until what it sees is good or the time is over; returns what it saw last. */
  private <T> T await(Supplier<T> look, Predicate<T> good, long timeoutMs) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (true) {
      T seen = look.get();
      long leftMs = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      if (good.test(seen) || leftMs <= 0) {
        return seen;
      }
      wait(Math.min(leftMs, LOOK_AGAIN_MS));
    }
  }

  private String holder(GpuUse use) {
    return use.gpuIds.stream().map(holders::get).filter(c -> c != null && !c.equals(use.container)).findFirst()
        .orElse(null);
  }
}
