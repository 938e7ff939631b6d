package isonomy.yarn.scale;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Arrays;
import java.util.Locale;

/** CPU nanoseconds of one kind of call, measured in the calling thread. */
final class Cost {
  private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
  private static final int KEPT = 1 << 16;

  private final long[] nanos = new long[KEPT];
  private long calls;
  private long sum;

  /** The CPU time of this thread so far. */
  static long now() {
    return THREADS.getCurrentThreadCpuTime();
  }

  /** Adds a call that began at {@code begin}. */
  synchronized void add(long begin) {
    long spent = now() - begin;
    nanos[(int) (calls++ % KEPT)] = spent;
    sum += spent;
  }

  /** Forgets the calls so far: what comes is measured warm. */
  synchronized void reset() {
    calls = 0;
    sum = 0;
  }

  /** As JSON. */
  synchronized String json() {
    int n = (int) Math.min(calls, KEPT);
    long[] ordered = Arrays.copyOf(nanos, n);
    Arrays.sort(ordered);
    double median = n == 0 ? 0 : ordered[n / 2] / 1e3;
    double p99 = n == 0 ? 0 : ordered[Math.min(n - 1, (int) (0.99 * n))] / 1e3;
    return String.format(Locale.ROOT, "{\"n\": %d, \"median_us\": %.1f, \"p99_us\": %.1f, \"mean_us\": %.1f}",
        calls, median, p99, calls == 0 ? 0 : sum / 1e3 / calls);
  }
}
