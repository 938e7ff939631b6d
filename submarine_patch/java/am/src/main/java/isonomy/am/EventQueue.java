package isonomy.am;

import isonomy.wire.v1.AmEvent;
import isonomy.wire.v1.AmEvents;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** The bounded queue of events for the Agent. */
final class EventQueue {
  private static final int BATCH_MAX = 500;

  private final BlockingQueue<AmEvent> events;
  private final long fullWaitMs;
  private final Consumer<String> onStuck;

  /**
   * @param capacity the most events in the queue
   * @param fullWaitMs how long to wait for room in a full queue
   * @param onStuck called with the reason if there was no room in time
   */
  EventQueue(int capacity, long fullWaitMs, Consumer<String> onStuck) {
    this.events = new ArrayBlockingQueue<>(capacity);
    this.fullWaitMs = fullWaitMs;
    this.onStuck = onStuck;
  }

  void add(AmEvent event) {
    try {
      if (!events.offer(event, fullWaitMs, TimeUnit.MILLISECONDS)) {
        onStuck.accept("the Agent took no event for " + fullWaitMs / 1000 + " s, " + events.size() + " wait");
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  /** Waits for the first event, then takes all that are waiting. */
  AmEvents take(int waitMs) throws InterruptedException {
    AmEvents.Builder batch = AmEvents.newBuilder();
    AmEvent first = events.poll(Math.max(0, waitMs), TimeUnit.MILLISECONDS);
    if (first != null) {
      List<AmEvent> others = new ArrayList<>();
      events.drainTo(others, BATCH_MAX - 1);
      batch.addEvents(first).addAllEvents(others);
    }
    return batch.build();
  }
}
