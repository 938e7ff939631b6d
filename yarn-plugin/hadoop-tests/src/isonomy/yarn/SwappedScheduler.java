package isonomy.yarn;

import java.util.concurrent.atomic.AtomicInteger;

/** The plugin as Hadoop's tests get it: switched on, with no control plane to talk to and no need for GPUs. */
public class SwappedScheduler extends IsonomyScheduler {
  private static final AtomicInteger MADE = new AtomicInteger();

  static {
    Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("schedulers swapped: " + MADE)));
  }

  public SwappedScheduler() {
    MADE.incrementAndGet();
  }

  @Override
  void requireGpus() {}

  @Override
  void startBridge() {}
}
