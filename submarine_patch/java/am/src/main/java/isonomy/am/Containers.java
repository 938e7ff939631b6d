package isonomy.am;

import isonomy.wire.v1.AmAsk;
import isonomy.wire.v1.AmLaunch;
import java.io.IOException;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;
import org.apache.hadoop.yarn.client.api.async.NMClientAsync;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The open asks and the held containers.
 *
 * <p>Invariants: an allocation request id has at most one open ask; a container answers exactly one open ask (any other
 * container is released without telling the Agent); the end of a container is reported once.
 */
final class Containers {
  private static final Logger LOG = LoggerFactory.getLogger(Containers.class);

  private final AMRMClientAsync<ContainerRequest> rm;
  private final NMClientAsync nm;
  private final WorkerLaunch launches;
  private final Map<Long, ContainerRequest> asks = new ConcurrentHashMap<>();
  private final Map<String, Container> held = new ConcurrentHashMap<>();
  private final Set<String> adopted = ConcurrentHashMap.newKeySet();
  private final Set<String> unseen = ConcurrentHashMap.newKeySet();
  private final ExecutorService stops = Executors.newSingleThreadExecutor(Containers::daemon);

  Containers(AMRMClientAsync<ContainerRequest> rm, NMClientAsync nm, WorkerLaunch launches) {
    this.rm = rm;
    this.nm = nm;
    this.launches = launches;
  }

  void ask(AmAsk ask) {
    ContainerRequest request = request(ask);
    if (asks.putIfAbsent(ask.getAllocationRequestId(), request) != null) {
      throw new IllegalArgumentException("allocation request " + ask.getAllocationRequestId() + " is open already");
    }
    rm.addContainerRequest(request);
  }

  static ContainerRequest request(AmAsk ask) {
    Resource resource = Resource.newInstance(ask.getMemoryMb(), ask.getVcores());
    if (ask.getGpus() > 0) {
      resource.setResourceValue(ResourceInformation.GPU_URI, ask.getGpus());
    }
    var builder = ContainerRequest.newBuilder().capability(resource).priority(Priority.newInstance(ask.getPriority()))
        .allocationRequestId(ask.getAllocationRequestId());
    if (!ask.getHost().isEmpty()) {
      builder.nodes(new String[] {ask.getHost()}).relaxLocality(false);
    }
    return builder.build();
  }

  void withdraw(long allocationRequestId) {
    ContainerRequest request = asks.remove(allocationRequestId);
    if (request != null) {
      rm.removeContainerRequest(request);
    }
  }

  /** Whether the container answers an open ask; if not, releases it. */
  boolean allocated(Container container) {
    ContainerRequest request = asks.remove(container.getAllocationRequestId());
    if (request == null) {
      LOG.warn("{} answers no open ask ({}): released", container.getId(), container.getAllocationRequestId());
      unseen.add(container.getId().toString());
      rm.releaseAssignedContainer(container.getId());
      return false;
    }
    rm.removeContainerRequest(request);
    held.put(container.getId().toString(), container);
    return true;
  }

  /** Adds a container of a previous attempt; returns whether it is new. */
  boolean adopt(Container container) {
    adopted.add(container.getId().toString());
    return held.putIfAbsent(container.getId().toString(), container) == null;
  }

  /** Removes a container that has ended; returns whether the Agent knows it. */
  boolean completed(String id) {
    held.remove(id);
    adopted.remove(id);
    return !unseen.remove(id);
  }

  void launch(AmLaunch launch) throws IOException {
    Container container = held.get(launch.getContainerId());
    if (container == null) {
      throw new IllegalArgumentException(launch.getContainerId() + " is not held");
    }
    nm.startContainerAsync(container, launches.context(launch));
  }

  void stop(String id) {
    Container container = held.get(id);
    if (container == null) {
      return;
    }
    if (adopted.contains(id)) {
      stops.execute(() -> stopAdopted(container));
    } else {
      nm.stopContainerAsync(container.getId(), container.getNodeId());
    }
  }

  void release(String id) {
    Container container = held.get(id);
    if (container != null) {
      rm.releaseAssignedContainer(container.getId());
    }
  }

  /** Stops a container with the synchronous client, as the asynchronous one knows only those that it started. */
  private void stopAdopted(Container container) {
    try {
      nm.getClient().stopContainer(container.getId(), container.getNodeId());
    } catch (YarnException | IOException e) {
      LOG.warn("{} could not be stopped on {}, released instead", container.getId(), container.getNodeId(), e);
      rm.releaseAssignedContainer(container.getId());
    }
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work, "stop-adopted");
    thread.setDaemon(true);
    return thread;
  }
}
