package isonomy.yarn;

import isonomy.wire.v1.Event;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * The bounded queue between the scheduler and the control plane. Adding never blocks: a full queue is emptied and
 * remembers that it overflowed, for a snapshot has to take the events' place then.
 */
final class EventQueue {
  private final int capacity;
  private final ArrayDeque<Event> events = new ArrayDeque<>();
  private long lastSeq;
  private boolean overflowed;

  EventQueue(int capacity) {
    if (capacity < 1) {
      throw new IllegalArgumentException("the capacity of the event queue must be at least 1, not " + capacity);
    }
    this.capacity = capacity;
  }

  /** Adds an event under the next sequence number. */
  synchronized void add(Event.Builder event) {
    event.setSeq(++lastSeq).setTimeMs(System.currentTimeMillis());
    if (events.size() >= capacity) {
      events.clear();
      overflowed = true;
    }
    if (!overflowed) {
      events.add(event.build());
      notifyAll();
    }
  }

  /** The oldest events, which stay queued until they are discarded; waits for the first one. */
  synchronized List<Event> peek(int max, long waitMs) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
    while (events.isEmpty()) {
      long leftMs = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      if (leftMs <= 0) {
        return List.of();
      }
      wait(leftMs);
    }
    List<Event> oldest = new ArrayList<>(Math.min(max, events.size()));
    for (Event event : events) {
      if (oldest.size() == max) {
        break;
      }
      oldest.add(event);
    }
    return oldest;
  }

  /** Forgets the events up to this sequence number. */
  synchronized void discard(long upToSeq) {
    while (!events.isEmpty() && events.peek().getSeq() <= upToSeq) {
      events.remove();
    }
  }

  /** Starts anew: what happened until now is told by a snapshot taken after this call. */
  synchronized long restart() {
    events.clear();
    overflowed = false;
    return lastSeq;
  }

  synchronized boolean overflowed() {
    return overflowed;
  }
}
