package isonomy.yarn;

import isonomy.wire.v1.Ask;
import isonomy.wire.v1.Event;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The bounded queue between the scheduler and the control plane. Adding never blocks. An event with an object's whole
 * state replaces a waiting one of the same object. An app that changes many asks does not hold up others: some of them
 * go with each request. A full queue is emptied and remembers the overflow, because a snapshot must then replace the
 * events.
 */
final class EventQueue {
  /** The most bytes of one request, but for its last event's. */
  static final int BYTES_AT_ONCE = 4 << 20;
  /** The most asks of an app in one request; its others go to the queue's end, unless nothing is asked any more. */
  static final int ASKS_AT_ONCE = 200;
  private final int capacity;
  /** The oldest first: by the object whose whole state it has, else by its number. */
  private final Map<Object, Event.Builder> events = new LinkedHashMap<>();
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
    if (event.hasAttemptRemoved()) {  // else those at the queue's end would come after it
      events.values().removeIf(e -> e.getAsk().getAttemptId().equals(event.getAttemptRemoved().getAttemptId()));
    }
    Object thing = thing(event);
    events.remove(thing);
    if (events.size() >= capacity) {
      events.clear();
      overflowed = true;
      return;
    }
    events.put(thing, event);
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
      case UNASKED:
        return "unasked";
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
    Map<Object, Event.Builder> later = new LinkedHashMap<>();
    Map<String, Integer> asks = new HashMap<>();
    long bytes = 0;
    for (Map.Entry<Object, Event.Builder> waiting : events.entrySet()) {
      Event.Builder event = waiting.getValue();
      if (oldest.size() == max || bytes >= BYTES_AT_ONCE) {
        break;
      }
      if (event.getAsk().getCount() > 0 && asks.merge(event.getAsk().getAppId(), 1, Integer::sum) > ASKS_AT_ONCE) {
        later.put(waiting.getKey(), event);
      } else {
        oldest.add(event.build());
        bytes += oldest.get(oldest.size() - 1).getSerializedSize();
      }
    }
    later.forEach((thing, event) -> {
      events.remove(thing);
      events.put(thing, event.setSeq(++lastSeq));
    });
    return oldest;
  }

  /** Removes the events up to this sequence number. */
  synchronized void discard(long upToSeq) {
    Iterator<Event.Builder> oldest = events.values().iterator();
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
