package isonomy.nm;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongSupplier;

/**
 * Which GPUs have an idle container: for a minute or more its processes used less than a thirtieth of a core. Who
 * computes on a GPU keeps a processor busier than that.
 */
final class Idleness {
  static final long WINDOW_MS = 60_000;
  /** CPU time within a window from which a container counts as busy. */
  static final long BUSY_MS = 2_000;
  /** YARN's limit for the value of a node attribute. */
  private static final int VALUE_MAX = 255;

  /** One container. */
  private static final class Watched {
    final GpuUse use;
    /** The CPU time that its processes have used, ms; negative if unknown. */
    final LongSupplier cpuMs;
    long windowStartMs;
    long windowCpuMs = -1;
    /** Since when it is idle; 0 if it is not. */
    long idleSinceMs;

    Watched(GpuUse use, LongSupplier cpuMs) {
      this.use = use;
      this.cpuMs = cpuMs;
    }

    void sample(long nowMs) {
      long cpu = cpuMs.getAsLong();
      boolean busy = cpu < 0 || windowCpuMs < 0 || cpu < windowCpuMs || cpu - windowCpuMs >= BUSY_MS;
      if (busy) {
        idleSinceMs = 0;
      } else if (nowMs - windowStartMs < WINDOW_MS) {
        return;
      } else if (idleSinceMs == 0) {
        idleSinceMs = windowStartMs;
      }
      windowStartMs = nowMs;
      windowCpuMs = cpu;
    }
  }

  private final Map<String, Watched> watched = new ConcurrentHashMap<>();

  void watch(GpuUse use, LongSupplier cpuMs) {
    watched.put(use.container, new Watched(use, cpuMs));
  }

  void forget(GpuUse use) {
    watched.remove(use.container);
  }

  /** Looks at all containers; to be called several times a window. */
  synchronized void sample(long nowMs) {
    watched.values().forEach(w -> w.sample(nowMs));
  }

  /** The idle GPUs as `GPU-SECOND`, since when in Unix seconds, joined by `_`; empty if none. */
  synchronized String value() {
    Map<Integer, Long> since = new TreeMap<>();
    for (Watched w : watched.values()) {
      if (w.idleSinceMs > 0) {
        w.use.gpuIds.forEach(gpu -> since.put(gpu, w.idleSinceMs / 1000));
      }
    }
    StringBuilder text = new StringBuilder();
    since.forEach((gpu, second) -> {
      String entry = (text.length() > 0 ? "_" : "") + gpu + "-" + second;
      if (text.length() + entry.length() <= VALUE_MAX) {
        text.append(entry);
      }
    });
    return text.toString();
  }
}
