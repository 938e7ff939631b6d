package isonomy.am;

import isonomy.wire.GpuTag;
import isonomy.wire.v1.AmAsk;
import isonomy.wire.v1.AmCompleted;
import isonomy.wire.v1.AmContainer;
import isonomy.wire.v1.AmContainerError;
import isonomy.wire.v1.AmEvent;
import isonomy.wire.v1.AmLaunch;
import isonomy.wire.v1.AmPreempt;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.ThreadFactoryBuilder;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.api.records.UpdatedContainer;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The open asks and the held containers. What the ResourceManager and the NodeManagers say of them is passed on as events.
 *
 * <p>Invariants: an allocation request id has at most one open ask; a container answers exactly one open ask (any other
 * container is released without telling the Agent); the end of a container is reported once.
 */
final class Containers extends AMRMClientAsync.AbstractCallbackHandler {
  private static final Logger LOG = LoggerFactory.getLogger(Containers.class);

  /** A call of a NodeManager. */
  private interface Call {
    void run() throws YarnException, IOException;
  }

  private final EventQueue events;
  private final Consumer<Outcome> end;
  private final Map<Long, ContainerRequest> asks = new ConcurrentHashMap<>();
  private final Map<String, Container> held = new ConcurrentHashMap<>();
  private final Set<String> unseen = ConcurrentHashMap.newKeySet();
  /** By held container its last call. */
  private final Map<String, CompletableFuture<Void>> calls = new ConcurrentHashMap<>();
  private final ExecutorService threads = Executors.newCachedThreadPool(
      new ThreadFactoryBuilder().setDaemon(true).setNameFormat("node-manager-%d").build());

  private volatile AMRMClientAsync<ContainerRequest> rm;
  private volatile NMClient nm;
  private volatile WorkerLaunch launches;
  private volatile float progress;

  Containers(EventQueue events, Consumer<Outcome> end) {
    this.events = events;
    this.end = end;
  }

  /** Sets the clients; call it before the first heartbeat. */
  void connect(AMRMClientAsync<ContainerRequest> newRm, NMClient newNm, WorkerLaunch newLaunches) {
    rm = newRm;
    nm = newNm;
    launches = newLaunches;
  }

  void setProgress(float fraction) {
    progress = Math.max(0f, Math.min(1f, fraction));
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

  @Override
  public void onContainersAllocated(List<Container> allocated) {
    for (Container container : allocated) {
      ContainerRequest request = asks.remove(container.getAllocationRequestId());
      if (request == null) {
        LOG.warn("{} answers no open ask ({}): released", container.getId(), container.getAllocationRequestId());
        unseen.add(container.getId().toString());
        rm.releaseAssignedContainer(container.getId());
        continue;
      }
      rm.removeContainerRequest(request);
      held.put(container.getId().toString(), container);
      events.add(AmEvent.newBuilder().setAllocated(describe(container)).build());
    }
  }

  @Override
  public void onContainersReceivedFromPreviousAttempts(List<Container> previous) {
    for (Container container : previous) {
      if (held.putIfAbsent(container.getId().toString(), container) == null) {
        events.add(AmEvent.newBuilder().setAdopted(describe(container)).build());
      }
    }
  }

  /** The container, with its GPU ids and lease as the ResourceManager signed them. */
  static AmContainer describe(Container container) {
    AmContainer.Builder builder = AmContainer.newBuilder().setContainerId(container.getId().toString())
        .setNodeId(container.getNodeId().toString()).setHost(container.getNodeId().getHost())
        .setAllocationRequestId(container.getAllocationRequestId());
    if (container.getNodeHttpAddress() != null) {
      builder.setNodeHttpAddress(container.getNodeHttpAddress());
    }
    GpuTag tag = tag(container);
    if (tag != null) {
      builder.addAllGpuIds(tag.gpuIds()).setLeaseId(tag.lease());
    }
    return builder.build();
  }

  private static GpuTag tag(Container container) {
    try {
      int gpus = (int) container.getResource().getResourceValue(ResourceInformation.GPU_URI);
      return GpuTag.read(container.getAllocationTags(), gpus);
    } catch (ResourceNotFoundException e) {
      return GpuTag.read(container.getAllocationTags()); // no resource-types.xml on the master's class path
    }
  }

  @Override
  public void onContainersCompleted(List<ContainerStatus> completed) {
    for (ContainerStatus status : completed) {
      String id = status.getContainerId().toString();
      held.remove(id);
      calls.remove(id);
      if (!unseen.remove(id)) {
        events.add(AmEvent.newBuilder().setCompleted(AmCompleted.newBuilder().setContainerId(id)
            .setExitStatus(status.getExitStatus()).setDiagnostics(status.getDiagnostics())).build());
      }
    }
  }

  void launch(AmLaunch launch) {
    Container container = held.get(launch.getContainerId());
    if (container == null) {
      throw new IllegalArgumentException(launch.getContainerId() + " is not held");
    }
    call(container, () -> {
      nm.startContainer(container, launches.context(launch));
      events.add(AmEvent.newBuilder().setStarted(launch.getContainerId()).build());
    }, error -> events.add(AmEvent.newBuilder().setStartError(AmContainerError.newBuilder()
        .setContainerId(launch.getContainerId()).setMessage(String.valueOf(error.getMessage()))).build()));
  }

  void stop(String id) {
    Container container = held.get(id);
    if (container != null) {
      call(container, () -> nm.stopContainer(container.getId(), container.getNodeId()),
          error -> LOG.warn("{} could not be stopped by its NodeManager, released instead: {}", id, error.toString()));
    }
  }

  /** Calls a container's NodeManager, after the earlier calls for it; a container whose call fails is released. */
  private void call(Container container, Call what, Consumer<Throwable> failed) {
    calls.compute(container.getId().toString(), (id, earlier) ->
        (earlier == null ? CompletableFuture.<Void>completedFuture(null) : earlier).thenRunAsync(() -> {
          try {
            what.run();
          } catch (Throwable e) {
            failed.accept(e);
            rm.releaseAssignedContainer(container.getId());
          }
        }, threads));
  }

  void release(String id) {
    Container container = held.get(id);
    if (container != null) {
      rm.releaseAssignedContainer(container.getId());
    }
  }

  @Override
  public void onPreemptionMessageReceived(PreemptionMessage message) {
    AmPreempt.Builder preempt = AmPreempt.newBuilder();
    if (message.getStrictContract() != null) {
      message.getStrictContract().getContainers().forEach(container -> add(preempt, container));
    }
    if (message.getContract() != null) {
      message.getContract().getContainers().forEach(container -> add(preempt, container));
    }
    if (preempt.getContainerIdsCount() > 0) {
      events.add(AmEvent.newBuilder().setPreempt(preempt).build());
    }
  }

  private static void add(AmPreempt.Builder preempt, PreemptionContainer container) {
    preempt.addContainerIds(container.getId().toString());
  }

  @Override
  public void onShutdownRequest() {
    String why = "the ResourceManager asked this attempt to end";
    events.add(AmEvent.newBuilder().setShutdown(why).build());
    end.accept(Outcome.attemptFailed(why, Outcome.SOFTWARE));
  }

  @Override
  public void onError(Throwable error) {
    end.accept(Outcome.attemptFailed("the ResourceManager client failed: " + error, Outcome.SOFTWARE));
  }

  @Override
  public float getProgress() {
    return progress;
  }

  @Override
  public void onContainersUpdated(List<UpdatedContainer> updated) {
    // Containers keep their size.
  }

  @Override
  public void onNodesUpdated(List<NodeReport> updated) {
    // The Agent gets the machines from the control plane.
  }
}
