package isonomy.yarn;

import isonomy.wire.v1.Ask;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint.AbstractConstraint;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint.And;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint.SingleConstraint;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint.TargetExpression;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint.TargetExpression.TargetType;
import org.apache.hadoop.yarn.api.resource.PlacementConstraints;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.QueueMetrics;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

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
  /** The most characters of hosts and racks to which an attempt's asks are limited; beyond, an ask keeps one. */
  static final int PLACES_MAX = 1 << 19;

  /** Counts an attempt's pending containers in the metrics of its queue. */
  interface Pending {
    /** `containers` may be negative. */
    void add(String partition, int containers, Resource each);
  }

  /** An ask; it keeps its label and places while the scheduler's write lock is held. */
  static final class Entry {
    final SchedulerRequestKey key;
    final Resource capability;
    int count;
    /** The hosts and racks to which it is limited; empty: any. */
    List<String> onlyOn = List.of();
    /** Set if it came through the constraint API. */
    SchedulingRequest original;
    private final Attempt attempt;
    /** How often the AM has asked; its first ask may still count recovered containers. */
    private int asks;
    /** The node label; null: the queue's default. */
    private String label;
    private final Map<String, ResourceRequest> locations = new HashMap<>();
    private Ask published;
    /** Its containers that the queue's metrics count, and their partition. */
    private int pending;
    private String pendingIn = "";

    Entry(Attempt attempt, SchedulerRequestKey key, Resource capability) {
      this.attempt = attempt;
      this.key = key;
      this.capability = capability;
    }

    /** The node label that its nodes must have; empty: the default partition. */
    String partition() {
      return original != null ? AskBook.partition(original) : label == null ? "" : label;
    }

    int toldCount() {
      return Math.min(count, TOLD_MAX);
    }

    /** Has the queue's metrics count this many containers. */
    void countPending(int now) {
      if (attempt.pending == null) {
        return;
      }
      String partition = partition();
      if (!partition.equals(pendingIn)) {
        attempt.pending.add(pendingIn, -pending, capability);
        pending = 0;
        pendingIn = partition;
      }
      if (now != pending) {
        attempt.pending.add(partition, now - pending, capability);
        pending = now;
      }
    }
  }

  private static final class Attempt {
    final ApplicationAttemptId id;
    final Map<SchedulerRequestKey, Entry> entries = new HashMap<>();
    final Map<SchedulerRequestKey, Integer> recovered = new HashMap<>();
    /** Null where the asks wait at CapacityScheduler, which counts them itself. */
    Pending pending;

    Attempt(ApplicationAttemptId id) {
      this.id = id;
    }
  }

  private final Map<ApplicationAttemptId, Attempt> attempts = new HashMap<>();
  private final Consumer<Ask> sink;

  AskBook(Consumer<Ask> sink) {
    this.sink = sink;
  }

  /** Accepts an attempt's asks from now on; `pending` null: those at CapacityScheduler, only to report them. */
  synchronized void open(ApplicationAttemptId id, Pending pending) {
    Attempt attempt = attempts.computeIfAbsent(id, Attempt::new);
    if (attempt.pending == null && pending != null) {
      attempt.entries.clear();  // they come again, now to be held back
    }
    attempt.entries.values().forEach(e -> e.countPending(0));
    attempt.pending = pending;
    attempt.entries.values().forEach(e -> e.countPending(e.toldCount()));
  }

  /** Whether an attempt's asks are accepted to be held back. */
  synchronized boolean isOpen(ApplicationAttemptId id) {
    Attempt attempt = attempts.get(id);
    return attempt != null && attempt.pending != null;
  }

  /** Drops the asks of an attempt that has ended. */
  synchronized void close(ApplicationAttemptId id) {
    Attempt attempt = attempts.remove(id);
    if (attempt != null) {
      attempt.entries.values().forEach(e -> e.countPending(0));
    }
  }

  /** Forgets an attempt and adds its asks to the lists, for CapacityScheduler, unless they wait there. */
  synchronized void giveBack(
      ApplicationAttemptId id, List<ResourceRequest> asks, List<SchedulingRequest> constrained) {
    Attempt attempt = attempts.get(id);
    for (Entry entry : attempt == null || attempt.pending == null ? List.<Entry>of() : attempt.entries.values()) {
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

  /** Copies of an attempt's asks for GPUs at CapacityScheduler, which does not expose those by the constraint API. */
  static List<ResourceRequest> waiting(FiCaSchedulerApp app) {
    return app.getAppSchedulingInfo().getAllResourceRequests().stream()
        .filter(r -> Gpus.of(r.getCapability()) > 0 && r.getNumContainers() > 0)
        .map(r -> copy(r, r.getNumContainers())).collect(Collectors.toList());
  }

  /** Counts an attempt's pending containers in the metrics of its queue. */
  static Pending pendingIn(FiCaSchedulerApp app) {
    QueueMetrics metrics = app.getQueue().getMetrics();
    String user = app.getUser();
    return (partition, containers, each) -> {
      if (containers > 0) {
        metrics.incrPendingResources(partition, user, containers, each);
      } else if (containers < 0) {
        metrics.decrPendingResources(partition, user, -containers, each);
      }
    };
  }

  /** A copy of the request with another number of containers. */
  static ResourceRequest copy(ResourceRequest r, int containers) {
    ResourceRequest copy = ResourceRequest.clone(r);
    copy.setNumContainers(containers);
    return copy;
  }

  /** Why an attempt may not ask under these keys too; null if it may. `keys`: those with a count above 0. */
  synchronized String refusal(ApplicationAttemptId id, Set<SchedulerRequestKey> keys) {
    Attempt attempt = attempts.get(id);
    Set<SchedulerRequestKey> all = new HashSet<>(keys);
    if (attempt != null) {
      if (keys.size() + attempt.entries.size() > KEYS_MAX) {
        attempt.entries.values().removeIf(entry -> entry.count == 0);  // they were kept in case that one is restored
      }
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
      Map<SchedulerRequestKey, Integer> notPulled) {
    Attempt attempt = attempts.get(id);
    if (attempt == null) {
      return;
    }
    Set<SchedulerRequestKey> touched = new LinkedHashSet<>();
    for (ResourceRequest r : asks) {
      Entry entry = entry(attempt, SchedulerRequestKey.create(r), r.getCapability(), r.getNumContainers());
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
        setCount(entry, r.getNumContainers(), notPulled);
      }
      touched.add(entry.key);
    }
    for (SchedulingRequest r : constrained) {
      int count = r.getResourceSizing().getNumAllocations();
      Entry entry = entry(attempt, SchedulerRequestKey.create(r), r.getResourceSizing().getResources(), count);
      if (entry != null) {
        entry.original = r;
        setCount(entry, count, notPulled);
        touched.add(entry.key);
      }
    }
    touched.stream().map(attempt.entries::get).forEach(entry -> entry.onlyOn = onlyOn(entry));
    int length = attempt.entries.values().stream().flatMap(e -> e.onlyOn.stream()).mapToInt(String::length).sum();
    for (SchedulerRequestKey key : touched) {
      Entry entry = attempt.entries.get(key);
      if (length > PLACES_MAX && !entry.onlyOn.isEmpty()) {
        entry.onlyOn = List.of(entry.onlyOn.get(0));
      }
      publish(entry);
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
    Set<SchedulerRequestKey> kept = asks.stream().map(SchedulerRequestKey::create).collect(Collectors.toSet());
    attempt.entries.values().stream().filter(e -> !kept.contains(e.key)).forEach(e -> change(e, -e.count));
    attempt.entries.keySet().retainAll(kept);
    ask(id, asks, List.of(), Map.of());
  }

  /** The entry of a key; null if the ask only withdraws one that does not exist, or is one too many to be reported. */
  private Entry entry(Attempt attempt, SchedulerRequestKey key, Resource capability, int count) {
    Entry entry = attempt.entries.get(key);
    if (entry != null && entry.capability.equals(capability)) {
      return entry;
    }
    if (count <= 0 || entry == null && attempt.pending == null && attempt.entries.size() >= KEYS_MAX) {
      return null;
    }
    if (entry != null) {
      change(entry, -entry.count);
    }
    Entry fresh = new Entry(attempt, key, capability);
    attempt.entries.put(key, fresh);
    return fresh;
  }

  private static void setCount(Entry entry, int asked, Map<SchedulerRequestKey, Integer> notPulled) {
    Integer recovered = entry.attempt.recovered.remove(entry.key);
    int known = notPulled.getOrDefault(entry.key, 0) + (recovered == null ? 0 : recovered);
    entry.asks++;
    entry.count = Math.max(0, asked - known);
  }

  /**
   * Notes a container recovered after a restart of the ResourceManager. An AM that repeats its asks after the
   * restart may still count it, so its first ask is reduced by it, if it has an allocationRequestId.
   */
  synchronized void recovered(ApplicationAttemptId id, SchedulerRequestKey key) {
    Attempt attempt = attempts.get(id);
    if (attempt == null || attempt.pending == null || key.getAllocationRequestId() <= 0) {
      return;
    }
    Entry entry = attempt.entries.get(key);
    if (entry == null) {
      attempt.recovered.merge(key, 1, Integer::sum);
    } else if (entry.asks == 1) {
      change(entry, -1);
    }
  }

  /** Counts down an ask for an allocated container, which YARN has already removed from the queue's metrics. */
  synchronized void placed(ApplicationAttemptId id, SchedulerRequestKey key) {
    Entry entry = entry(id, key);
    if (entry != null) {
      entry.pending--;
      change(entry, -1);
    }
  }

  /** Reopens an ask whose container ended before its AM received it. */
  synchronized void restored(ApplicationAttemptId id, SchedulerRequestKey key) {
    Entry entry = entry(id, key);
    if (entry != null && entry.attempt.pending != null) {
      change(entry, 1);
    }
  }

  private Entry entry(ApplicationAttemptId id, SchedulerRequestKey key) {
    Attempt attempt = attempts.get(id);
    return attempt == null ? null : attempt.entries.get(key);
  }

  private void change(Entry entry, int by) {
    entry.count = Math.max(0, entry.count + by);
    publish(entry);
  }

  /** Sends an ask to the sink and the metrics if it has changed since the last time. */
  private void publish(Entry entry) {
    entry.countPending(entry.toldCount());
    Ask message = message(entry);
    if (!message.equals(entry.published)) {
      entry.published = message;
      sink.accept(message);
    }
  }

  /** The ask of this key; null if nothing is outstanding. */
  synchronized Entry find(ApplicationAttemptId id, SchedulerRequestKey key) {
    Entry entry = entry(id, key);
    return entry == null || entry.count == 0 ? null : entry;
  }

  /** Every outstanding ask. */
  synchronized List<Ask> all() {
    return attempts.values().stream().flatMap(attempt -> attempt.entries.values().stream())
        .filter(entry -> entry.count > 0).map(AskBook::message).collect(Collectors.toList());
  }

  private static Ask message(Entry entry) {
    ApplicationAttemptId id = entry.attempt.id;
    Ask.Builder ask = Ask.newBuilder()
        .setAttemptId(id.toString())
        .setAppId(id.getApplicationId().toString())
        .setAllocationRequestId(entry.key.getAllocationRequestId())
        .setPriority(entry.key.getPriority().getPriority())
        .setGpus(Gpus.of(entry.capability))
        .setMemoryMb(entry.capability.getMemorySize())
        .setVcores(entry.capability.getVirtualCores())
        .setCount(entry.toldCount())
        .addAllOnlyOn(entry.onlyOn);
    if (entry.original != null) {
      ask.setNodeLabelExpression(entry.partition());
    } else if (entry.label != null) {
      ask.setNodeLabelExpression(entry.label);
    }
    return ask.build();
  }

  /** The partition that a request of the constraint API names; empty, so the default one, if it names none. */
  static String partition(SchedulingRequest request) {
    return constraints(request).flatMap(one -> one.getTargetExpressions().stream())
        .filter(target -> PlacementConstraints.NODE_PARTITION.equals(target.getTargetKey()))
        .map(TargetExpression::getTargetValues).filter(values -> values != null && values.size() == 1)
        .findFirst().map(values -> values.iterator().next()).orElse("");
  }

  /** A request's constraints on node attributes alone, which do not come and go as containers do; `request` may be null. */
  static List<PlacementConstraint> onAttributes(SchedulingRequest request) {
    return constraints(request).filter(one -> one.getTargetExpressions().stream()
        .allMatch(target -> target.getTargetType() == TargetType.NODE_ATTRIBUTE))
        .map(AbstractConstraint::build).collect(Collectors.toList());
  }

  private static Stream<SingleConstraint> constraints(SchedulingRequest request) {
    PlacementConstraint constraint = request == null ? null : request.getPlacementConstraint();
    return constraint == null ? Stream.empty() : constraints(constraint.getConstraintExpr());
  }

  private static Stream<SingleConstraint> constraints(AbstractConstraint constraint) {
    return constraint instanceof SingleConstraint ? Stream.of((SingleConstraint) constraint)
        : constraint instanceof And ? ((And) constraint).getChildren().stream().flatMap(AskBook::constraints)
        : Stream.empty();
  }

  /** The hosts and racks to which the ask is limited; empty if its locality may be relaxed. */
  private static List<String> onlyOn(Entry entry) {
    ResourceRequest any = entry.locations.get(ResourceRequest.ANY);
    if (entry.original != null || any == null || any.getRelaxLocality()) {
      return List.of();
    }
    return entry.locations.values().stream()
        .filter(r -> r != any && r.getNumContainers() > 0 && r.getRelaxLocality())
        .map(r -> ClusterView.told(r.getResourceName()))
        .sorted()
        .collect(Collectors.toUnmodifiableList());
  }
}
