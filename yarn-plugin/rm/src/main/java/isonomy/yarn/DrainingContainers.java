package isonomy.yarn;

import isonomy.wire.v1.ContainerCompleted;
import isonomy.wire.v1.GpuContainer;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/**
 * Containers that the ResourceManager has ended (killed, released, expired) but whose processes may still run.
 * Their GPUs are in use until the NodeManager reports the end. The sink gets each container's real end under
 * this object's lock; it must not block.
 */
final class DrainingContainers {
  /** A live NodeManager that does not report a container for this long has forgotten it. */
  static final long PATIENCE_MS = 60_000;
  /** Heartbeats after which a NodeManager has received the order to end a container that it never reported. */
  private static final int HEARTBEATS = 2;

  private static final class Ending {
    final GpuContainer container;
    final ContainerCompleted end;
    final long sinceMs;
    boolean started;
    int heartbeats;

    Ending(GpuContainer container, ContainerCompleted end, boolean started, long sinceMs) {
      this.container = container;
      this.end = end;
      this.started = started;
      this.sinceMs = sinceMs;
    }
  }

  private final Map<String, Map<String, Ending>> byNode = new HashMap<>();
  private final BiConsumer<GpuContainer, ContainerCompleted> sink;

  DrainingContainers(BiConsumer<GpuContainer, ContainerCompleted> sink) {
    this.sink = sink;
  }

  /** The ResourceManager has ended a container. `started`: its NodeManager has reported it. */
  synchronized void begin(GpuContainer container, ContainerCompleted end, boolean started, long nowMs) {
    byNode.computeIfAbsent(container.getNodeId(), n -> new LinkedHashMap<>())
        .put(container.getContainerId(), new Ending(container.toBuilder().setEnding(true).build(), end, started, nowMs));
  }

  /** A NodeManager reports an ended container as started: wait for its end. */
  synchronized void started(String nodeId, String containerId) {
    Ending ending = byNode.getOrDefault(nodeId, Map.of()).get(containerId);
    if (ending != null) {
      ending.started = true;
    }
  }

  /** A NodeManager reports the end of a container. */
  synchronized void ended(String containerId) {
    for (String nodeId : List.copyOf(byNode.keySet())) {
      finish(nodeId, e -> e.container.getContainerId().equals(containerId));
    }
  }

  synchronized boolean isEmpty() {
    return byNode.isEmpty();
  }

  /** A NodeManager's heartbeat; gives up on containers that it has forgotten or never started. */
  synchronized void heartbeat(String nodeId, long nowMs) {
    finish(nodeId, e -> ++e.heartbeats >= HEARTBEATS && !e.started || nowMs - e.sinceMs > PATIENCE_MS);
  }

  /** A node is gone, with its containers. */
  synchronized void nodeGone(String nodeId) {
    finish(nodeId, e -> true);
  }

  private void finish(String nodeId, Predicate<Ending> over) {
    Map<String, Ending> endings = byNode.get(nodeId);
    if (endings == null) {
      return;
    }
    for (Ending ending : List.copyOf(endings.values())) {
      if (over.test(ending)) {
        endings.remove(ending.container.getContainerId());
        sink.accept(ending.container, ending.end);
      }
    }
    if (endings.isEmpty()) {
      byNode.remove(nodeId);
    }
  }

  synchronized List<GpuContainer> on(String nodeId) {
    return byNode.getOrDefault(nodeId, Map.of()).values().stream().map(e -> e.container).collect(Collectors.toList());
  }

  synchronized List<GpuContainer> all() {
    return byNode.keySet().stream().flatMap(nodeId -> on(nodeId).stream()).collect(Collectors.toList());
  }
}
