package isonomy.yarn;

import isonomy.wire.v1.Ask;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.ToIntFunction;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;

/**
 * The outstanding asks for GPUs, held back from the queues.
 *
 * <p>As in YARN, an ask is known by attempt, priority and allocationRequestId, its count is absolute, and the
 * latest capability replaces an earlier one. Each change goes to the sink, under the book's lock so that changes
 * keep their order; the sink must not block. Holders of scheduler locks may call this class, it calls nobody.
 */
final class AskBook {
  /** What makes it one ask of an attempt. */
  record Key(int priority, long allocationRequestId) {}

  /** An ask as it was when it was looked up. `original`: set if it came through the constraint API. */
  record Held(ApplicationAttemptId attempt, Key key, Resource capability, int count, SchedulingRequest original) {}

  private static final class Entry {
    Resource capability;
    int count;
    /** How often the AM has asked: after its first ask, what was recovered may be what it asks for. */
    int asks;
    String label = "";
    SchedulingRequest original;
    final Map<String, ResourceRequest> locations = new HashMap<>();
  }

  private static final class Attempt {
    final Map<Key, Entry> entries = new HashMap<>();
    final Map<Key, Integer> recovered = new HashMap<>();
  }

  private final Map<ApplicationAttemptId, Attempt> attempts = new HashMap<>();
  private final Consumer<Ask> sink;

  AskBook(Consumer<Ask> sink) {
    this.sink = sink;
  }

  /** Asks of an attempt are taken from now on. */
  synchronized void open(ApplicationAttemptId attempt) {
    attempts.computeIfAbsent(attempt, a -> new Attempt());
  }

  /** An attempt ended: its asks are void. */
  synchronized void close(ApplicationAttemptId attempt) {
    attempts.remove(attempt);
  }

  /**
   * Takes an AM's asks with GPUs. `notPulled`: how many containers for a key are allocated and the AM cannot know
   * of yet, so that it still counts them in its ask.
   */
  synchronized void ask(
      ApplicationAttemptId id,
      List<ResourceRequest> asks,
      List<SchedulingRequest> constrained,
      ToIntFunction<Key> notPulled) {
    Attempt attempt = attempts.get(id);
    if (attempt == null) {
      return;
    }
    Set<Key> touched = new LinkedHashSet<>();
    for (ResourceRequest r : asks) {
      Key key = new Key(r.getPriority().getPriority(), r.getAllocationRequestId());
      Entry entry = entry(id, attempt, key, r.getCapability(), r.getNumContainers());
      if (entry == null) {
        continue;
      }
      entry.locations.put(r.getResourceName(), r);
      if (ResourceRequest.isAnyLocation(r.getResourceName())) {
        entry.label = r.getNodeLabelExpression() == null ? "" : r.getNodeLabelExpression();
        entry.original = null;
        setCount(attempt, key, entry, r.getNumContainers(), notPulled);
      }
      touched.add(key);
    }
    for (SchedulingRequest r : constrained) {
      Key key = new Key(r.getPriority().getPriority(), r.getAllocationRequestId());
      int count = r.getResourceSizing().getNumAllocations();
      Entry entry = entry(id, attempt, key, r.getResourceSizing().getResources(), count);
      if (entry != null) {
        entry.original = r;
        setCount(attempt, key, entry, count, notPulled);
        touched.add(key);
      }
    }
    for (Key key : touched) {
      Entry entry = attempt.entries.get(key);
      sink.accept(message(id, key, entry, entry.count));
      if (entry.count == 0) {
        attempt.entries.remove(key);
      }
    }
  }

  /** The entry of a key; null where the ask only withdraws what is not there any more. */
  private Entry entry(ApplicationAttemptId id, Attempt attempt, Key key, Resource capability, int count) {
    Entry entry = attempt.entries.get(key);
    if (entry != null && entry.capability.equals(capability)) {
      return entry;
    }
    if (count == 0) {
      return null;
    }
    if (entry != null) {
      sink.accept(message(id, key, entry, 0));
    }
    Entry fresh = new Entry();
    fresh.capability = capability;
    attempt.entries.put(key, fresh);
    return fresh;
  }

  private static void setCount(Attempt attempt, Key key, Entry entry, int asked, ToIntFunction<Key> notPulled) {
    Integer recovered = attempt.recovered.remove(key);
    int known = notPulled.applyAsInt(key) + (recovered == null ? 0 : recovered);
    entry.asks++;
    entry.count = Math.max(0, asked - known);
  }

  /**
   * A container of before a restart of the ResourceManager is back. An AM that repeats its asks after such a
   * restart may still count it, so its first ask is reduced by it; only where the allocationRequestId tells.
   */
  synchronized void recovered(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    if (attempt == null || key.allocationRequestId() <= 0) {
      return;
    }
    Entry entry = attempt.entries.get(key);
    if (entry == null) {
      attempt.recovered.merge(key, 1, Integer::sum);
    } else if (entry.asks == 1) {
      change(id, key, entry, -1);
    }
  }

  /** A container was allocated for this ask. */
  synchronized void placed(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    Entry entry = attempt == null ? null : attempt.entries.get(key);
    if (entry != null) {
      change(id, key, entry, -1);
    }
  }

  /** A container ended before its AM had it: the ask is outstanding again. */
  synchronized void restored(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    Entry entry = attempt == null ? null : attempt.entries.get(key);
    if (entry != null) {
      change(id, key, entry, 1);
    }
  }

  private void change(ApplicationAttemptId id, Key key, Entry entry, int by) {
    entry.count = Math.max(0, entry.count + by);
    sink.accept(message(id, key, entry, entry.count));
  }

  /** The ask of this key; null if nothing is outstanding. */
  synchronized Held find(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    Entry entry = attempt == null ? null : attempt.entries.get(key);
    if (entry == null || entry.count == 0) {
      return null;
    }
    return new Held(id, key, entry.capability, entry.count, entry.original);
  }

  /** Every outstanding ask. */
  synchronized List<Ask> all() {
    List<Ask> all = new ArrayList<>();
    attempts.forEach((id, attempt) -> attempt.entries.forEach((key, entry) -> {
      if (entry.count > 0) {
        all.add(message(id, key, entry, entry.count));
      }
    }));
    return all;
  }

  private static Ask message(ApplicationAttemptId id, Key key, Entry entry, int count) {
    return Ask.newBuilder()
        .setAttemptId(id.toString())
        .setAppId(id.getApplicationId().toString())
        .setAllocationRequestId(key.allocationRequestId())
        .setPriority(key.priority())
        .setGpus(Gpus.of(entry.capability))
        .setMemoryMb(entry.capability.getMemorySize())
        .setVcores(entry.capability.getVirtualCores())
        .setCount(count)
        .setNodeLabelExpression(entry.label)
        .addAllOnlyOn(onlyOn(entry))
        .build();
  }

  /** Hosts and racks that the ask is limited to: none if its locality may be relaxed. */
  private static List<String> onlyOn(Entry entry) {
    ResourceRequest any = entry.locations.get(ResourceRequest.ANY);
    if (any == null || any.getRelaxLocality()) {
      return List.of();
    }
    return entry.locations.values().stream()
        .filter(r -> r != any && r.getNumContainers() > 0 && r.getRelaxLocality())
        .map(ResourceRequest::getResourceName)
        .sorted()
        .toList();
  }
}
