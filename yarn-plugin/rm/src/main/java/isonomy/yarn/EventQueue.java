package isonomy.yarn;

import isonomy.wire.v1.Ask;
import isonomy.wire.v1.Event;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The bounded queue between the scheduler and the control plane. Adding never blocks. An event with an object's whole
 * state replaces a waiting one of the same object. A full queue is emptied and remembers the overflow, because a
 * snapshot must then replace the events.
 */
final class EventQueue {
  /** The most bytes of one request, but for its last event's. */
  static final int BYTES_AT_ONCE = 4 << 20;
  private final int capacity;
  /** The oldest first: by the object whose whole state it has, else by its number. */
  private final Map<Object, Event> events = new LinkedHashMap<>();
  private long lastSeq;
  private boolean overflowed;

  EventQueue(int capacity) {
    this.capacity = capacity;
  }

  /** Adds an event under the next sequence number. */
  synchronized void add(Event.Builder event) {
    event.setSeq(++lastSeq).setTimeMs(System.currentTimeMillis());
    if (overflowed) {
      return;
    }
    Object thing = thing(event);
    events.remove(thing);
    if (events.size() >= capacity) {
      events.clear();
      overflowed = true;
      return;
    }
    events.put(thing, event.build());
    notifyAll();
  }

  /** The object whose whole state the event has; the event's number if it is a change. */
  private static Object thing(Event.Builder event) {
    switch (event.getKindCase()) {
      case ASK:
        Ask ask = event.getAsk();
        return List.of("ask", ask.getAttemptId(), ask.getAllocationRequestId(), ask.getPriority(), ask.getGpus());
      case NODE_UP:
        return List.of("node", event.getNodeUp().getNodeId());
      case APP_UPDATED:
        return List.of("app", event.getAppUpdated().getAppId());
      default:
        return event.getSeq();
    }
  }

  /** The oldest events, which stay queued until they are discarded; waits for the first one. None: look again. */
  synchronized List<Event> peek(int max, long waitMs) throws InterruptedException {
    if (events.isEmpty() && waitMs > 0) {
      wait(waitMs);
    }
    List<Event> oldest = new ArrayList<>();
    long bytes = 0;
    for (Event event : events.values()) {
      if (oldest.size() == max || bytes >= BYTES_AT_ONCE) {
        break;
      }
      oldest.add(event);
      bytes += event.getSerializedSize();
    }
    return oldest;
  }

  /** Removes the events up to this sequence number. */
  synchronized void discard(long upToSeq) {
    Iterator<Event> oldest = events.values().iterator();
    while (oldest.hasNext() && oldest.next().getSeq() <= upToSeq) {
      oldest.remove();
    }
  }

  /** Empties the queue, because a snapshot taken after this call replaces its events; returns the last number. */
  synchronized long restart() {
    events.clear();
    overflowed = false;
    return lastSeq;
  }

  synchronized boolean overflowed() {
    return overflowed;
  }
}
