package isonomy.yarn;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** The plugin in Hadoop's tests: switched on, without a control plane and without GPUs. */
public class SwappedScheduler extends IsonomyScheduler {
  private static final AtomicInteger MADE = new AtomicInteger();

  static {
    Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("schedulers swapped: " + MADE)));
  }

  public SwappedScheduler() {
    MADE.incrementAndGet();
    managed = Managed.of("on", List.of(), "the test", 0);
  }

  @Override
  void openMode() {}
}
