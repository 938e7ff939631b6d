package isonomy.yarn;

import isonomy.wire.v1.Ask;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;

/**
 * The outstanding asks for GPUs, held back from the queues.
 *
 * <p>As in YARN, an ask is identified by attempt, priority and allocationRequestId, its count is absolute, and the
 * latest capability replaces an earlier one. Each change goes to the sink, and outstanding containers to the queue's
 * metrics, under the book's lock so that changes keep their order; neither may block. Holders of scheduler locks may
 * call this class, it calls nobody else.
 */
final class AskBook {
  /** The most keys under which an attempt may ask at a time. */
  static final int KEYS_MAX = 4096;
  /** The most containers of one ask that are reported at a time; the others follow as these are served. */
  static final int TOLD_MAX = 65_536;

  /** Identifies an ask of an attempt. */
  static final class Key {
    private final int priority;
    private final long allocationRequestId;

    Key(int priority, long allocationRequestId) {
      this.priority = priority;
      this.allocationRequestId = allocationRequestId;
    }

    static Key of(ResourceRequest r) {
      return new Key(r.getPriority().getPriority(), r.getAllocationRequestId());
    }

    static Key of(SchedulingRequest r) {
      return new Key(r.getPriority().getPriority(), r.getAllocationRequestId());
    }

    long allocationRequestId() {
      return allocationRequestId;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Key && ((Key) other).priority == priority
          && ((Key) other).allocationRequestId == allocationRequestId;
    }

    @Override
    public int hashCode() {
      return Objects.hash(priority, allocationRequestId);
    }
  }

  /** An ask as it was when it was looked up. */
  static final class Held {
    final ApplicationAttemptId attempt;
    final Key key;
    final Resource capability;
    final int count;
    /** The node label that its nodes must have; empty: the default partition. */
    final String partition;
    /** The hosts and racks to which it is limited; empty: any. */
    final List<String> onlyOn;
    /** Set if it came through the constraint API. */
    final SchedulingRequest original;

    private Held(ApplicationAttemptId attempt, Key key, Entry entry) {
      this.attempt = attempt;
      this.key = key;
      this.capability = entry.capability;
      this.count = entry.count;
      this.partition = entry.partition();
      this.onlyOn = entry.onlyOn;
      this.original = entry.original;
    }
  }

  /** Counts an attempt's pending containers in the metrics of its queue. */
  interface Pending {
    /** `containers` may be negative. */
    void add(String partition, int containers, Resource each);
  }

  private static final class Entry {
    final Resource capability;
    int count;
    /** How often the AM has asked; its first ask may still count recovered containers. */
    int asks;
    /** The node label; null: the queue's default. */
    String label;
    SchedulingRequest original;
    List<String> onlyOn = List.of();
    final Map<String, ResourceRequest> locations = new HashMap<>();
    Ask published;
    /** Its containers that the queue's metrics count, and their partition. */
    int pending;
    String pendingIn = "";

    Entry(Resource capability) {
      this.capability = capability;
    }

    String partition() {
      return original != null ? Partitions.of(original) : label == null ? "" : label;
    }

    int toldCount() {
      return Math.min(count, TOLD_MAX);
    }
  }

  private static final class Attempt {
    final Map<Key, Entry> entries = new HashMap<>();
    final Map<Key, Integer> recovered = new HashMap<>();
    Pending pending;

    Attempt(Pending pending) {
      this.pending = pending;
    }

    void count(Entry entry, int now) {
      String partition = entry.partition();
      if (!partition.equals(entry.pendingIn)) {
        pending.add(entry.pendingIn, -entry.pending, entry.capability);
        entry.pending = 0;
        entry.pendingIn = partition;
      }
      if (now != entry.pending) {
        pending.add(partition, now - entry.pending, entry.capability);
        entry.pending = now;
      }
    }
  }

  private final Map<ApplicationAttemptId, Attempt> attempts = new HashMap<>();
  private final Consumer<Ask> sink;

  AskBook(Consumer<Ask> sink) {
    this.sink = sink;
  }

  /** Accepts an attempt's asks from now on. */
  synchronized void open(ApplicationAttemptId id, Pending pending) {
    attempts.computeIfAbsent(id, a -> new Attempt(pending));
  }

  /** Drops the asks of an attempt that has ended. */
  synchronized void close(ApplicationAttemptId id) {
    Attempt attempt = attempts.remove(id);
    if (attempt != null) {
      attempt.entries.values().forEach(e -> attempt.count(e, 0));
    }
  }

  /** An attempt was moved to another queue. */
  synchronized void moved(ApplicationAttemptId id, Pending pending) {
    Attempt attempt = attempts.get(id);
    if (attempt == null) {
      return;
    }
    attempt.entries.values().forEach(e -> attempt.count(e, 0));
    attempt.pending = pending;
    attempt.entries.values().forEach(e -> attempt.count(e, e.toldCount()));
  }

  /** Forgets an attempt and adds its asks to the lists, for CapacityScheduler. */
  synchronized void giveBack(
      ApplicationAttemptId id, List<ResourceRequest> asks, List<SchedulingRequest> constrained) {
    Attempt attempt = attempts.get(id);
    for (Entry entry : attempt == null ? List.<Entry>of() : attempt.entries.values()) {
      if (entry.original != null) {
        entry.original.getResourceSizing().setNumAllocations(entry.count);
        constrained.add(entry.original);
        continue;
      }
      entry.locations.values().forEach(r -> asks.add(copy(r,
          ResourceRequest.isAnyLocation(r.getResourceName()) ? entry.count : Math.min(entry.count, r.getNumContainers()))));
    }
    close(id);
  }

  /** A copy of the request with another number of containers. */
  static ResourceRequest copy(ResourceRequest r, int containers) {
    return ResourceRequest.newBuilder().priority(r.getPriority()).resourceName(r.getResourceName())
        .capability(r.getCapability()).numContainers(containers).relaxLocality(r.getRelaxLocality())
        .nodeLabelExpression(r.getNodeLabelExpression()).executionTypeRequest(r.getExecutionTypeRequest())
        .allocationRequestId(r.getAllocationRequestId()).build();
  }

  /** Why an attempt may not ask under these keys too; null if it may. `keys`: those with a count above 0. */
  synchronized String refusal(ApplicationAttemptId id, Set<Key> keys) {
    Attempt attempt = attempts.get(id);
    Set<Key> all = new HashSet<>(keys);
    if (attempt != null) {
      all.addAll(attempt.entries.keySet());
    }
    return all.size() <= KEYS_MAX ? null
        : id + " asks for GPUs under " + all.size() + " different pairs of priority and allocationRequestId, at most "
            + KEYS_MAX + " are possible at a time: give like containers one allocationRequestId, or ask for some later";
  }

  /**
   * Records an AM's asks with GPUs. `notPulled`: by key, the allocated containers that the AM has not yet fetched
   * and therefore still counts in its ask.
   */
  synchronized void ask(
      ApplicationAttemptId id,
      List<ResourceRequest> asks,
      List<SchedulingRequest> constrained,
      Map<Key, Integer> notPulled) {
    Attempt attempt = attempts.get(id);
    if (attempt == null) {
      return;
    }
    Set<Key> touched = new LinkedHashSet<>();
    for (ResourceRequest r : asks) {
      Key key = Key.of(r);
      Entry entry = entry(id, attempt, key, r.getCapability(), r.getNumContainers());
      if (entry == null) {
        continue;
      }
      boolean any = ResourceRequest.isAnyLocation(r.getResourceName());
      if (any || r.getNumContainers() > 0) {
        entry.locations.put(r.getResourceName(), r);
      } else {
        entry.locations.remove(r.getResourceName());
      }
      if (any) {
        entry.label = r.getNodeLabelExpression();
        entry.original = null;
        setCount(attempt, key, entry, r.getNumContainers(), notPulled);
      }
      touched.add(key);
    }
    for (SchedulingRequest r : constrained) {
      Key key = Key.of(r);
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
      entry.onlyOn = onlyOn(entry);
      publish(id, attempt, key, entry);
      if (entry.count == 0) {
        attempt.entries.remove(key);
      }
    }
  }

  /** Replaces all asks of an attempt with GPUs; those not in the list are withdrawn. */
  synchronized void replace(ApplicationAttemptId id, List<ResourceRequest> asks) {
    Attempt attempt = attempts.get(id);
    if (attempt == null) {
      return;
    }
    List<ResourceRequest> all = new ArrayList<>(asks);
    Set<Key> kept = asks.stream().map(Key::of).collect(Collectors.toSet());
    attempt.entries.forEach((key, entry) -> {
      if (!kept.contains(key)) {
        all.add(ResourceRequest.newBuilder().priority(Priority.newInstance(key.priority))
            .allocationRequestId(key.allocationRequestId).resourceName(ResourceRequest.ANY)
            .capability(entry.capability).numContainers(0).build());
      }
    });
    ask(id, all, List.of(), Map.of());
  }

  /** The entry of a key; null if the ask only withdraws an entry that does not exist. */
  private Entry entry(ApplicationAttemptId id, Attempt attempt, Key key, Resource capability, int count) {
    Entry entry = attempt.entries.get(key);
    if (entry != null && entry.capability.equals(capability)) {
      return entry;
    }
    if (count <= 0) {
      return null;
    }
    if (entry != null) {
      entry.count = 0;
      publish(id, attempt, key, entry);
    }
    Entry fresh = new Entry(capability);
    attempt.entries.put(key, fresh);
    return fresh;
  }

  private static void setCount(Attempt attempt, Key key, Entry entry, int asked, Map<Key, Integer> notPulled) {
    Integer recovered = attempt.recovered.remove(key);
    int known = notPulled.getOrDefault(key, 0) + (recovered == null ? 0 : recovered);
    entry.asks++;
    entry.count = Math.max(0, asked - known);
  }

  /**
   * Notes a container recovered after a restart of the ResourceManager. An AM that repeats its asks after the
   * restart may still count it, so its first ask is reduced by it, if it has an allocationRequestId.
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
      change(id, attempt, key, -1);
    }
  }

  /** Counts down an ask for an allocated container, which YARN has already removed from the queue's metrics. */
  synchronized void placed(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    Entry entry = attempt == null ? null : attempt.entries.get(key);
    if (entry != null) {
      entry.pending--;
      change(id, attempt, key, -1);
    }
  }

  /** Reopens an ask whose container ended before its AM received it. */
  synchronized void restored(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    if (attempt != null && attempt.entries.containsKey(key)) {
      change(id, attempt, key, 1);
    }
  }

  private void change(ApplicationAttemptId id, Attempt attempt, Key key, int by) {
    Entry entry = attempt.entries.get(key);
    entry.count = Math.max(0, entry.count + by);
    publish(id, attempt, key, entry);
  }

  /** Sends an ask to the sink and the metrics if it has changed since the last time. */
  private void publish(ApplicationAttemptId id, Attempt attempt, Key key, Entry entry) {
    attempt.count(entry, entry.toldCount());
    Ask message = message(id, key, entry);
    if (!message.equals(entry.published)) {
      entry.published = message;
      sink.accept(message);
    }
  }

  /** The ask of this key; null if nothing is outstanding. */
  synchronized Held find(ApplicationAttemptId id, Key key) {
    Attempt attempt = attempts.get(id);
    Entry entry = attempt == null ? null : attempt.entries.get(key);
    return entry == null || entry.count == 0 ? null : new Held(id, key, entry);
  }

  /** Every outstanding ask. */
  synchronized List<Ask> all() {
    List<Ask> all = new ArrayList<>();
    attempts.forEach((id, attempt) -> attempt.entries.forEach((key, entry) -> {
      if (entry.count > 0) {
        all.add(message(id, key, entry));
      }
    }));
    return all;
  }

  private static Ask message(ApplicationAttemptId id, Key key, Entry entry) {
    Ask.Builder ask = Ask.newBuilder()
        .setAttemptId(id.toString())
        .setAppId(id.getApplicationId().toString())
        .setAllocationRequestId(key.allocationRequestId)
        .setPriority(key.priority)
        .setGpus(Gpus.of(entry.capability))
        .setMemoryMb(entry.capability.getMemorySize())
        .setVcores(entry.capability.getVirtualCores())
        .setCount(entry.toldCount())
        .addAllOnlyOn(entry.onlyOn);
    if (entry.original != null) {
      ask.setNodeLabelExpression(entry.partition());
      if (entry.original.getPlacementConstraint() != null) {
        ask.setPlacementConstraint(entry.original.getPlacementConstraint().toString());
      }
    } else if (entry.label != null) {
      ask.setNodeLabelExpression(entry.label);
    }
    return ask.build();
  }

  /** The hosts and racks to which the ask is limited; empty if its locality may be relaxed. */
  private static List<String> onlyOn(Entry entry) {
    ResourceRequest any = entry.locations.get(ResourceRequest.ANY);
    if (entry.original != null || any == null || any.getRelaxLocality()) {
      return List.of();
    }
    return entry.locations.values().stream()
        .filter(r -> r != any && r.getNumContainers() > 0 && r.getRelaxLocality())
        .map(ResourceRequest::getResourceName)
        .sorted()
        .collect(Collectors.toUnmodifiableList());
  }
}
