package isonomy.am;

import isonomy.wire.v1.AmContainerError;
import isonomy.wire.v1.AmEvent;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.async.NMClientAsync;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The NodeManagers' callbacks, passed on as events. */
final class NmCallbacks extends NMClientAsync.AbstractCallbackHandler {
  private static final Logger LOG = LoggerFactory.getLogger(NmCallbacks.class);

  private final EventQueue events;
  private final Consumer<ContainerId> release;

  /** @param release gives a container back to the ResourceManager */
  NmCallbacks(EventQueue events, Consumer<ContainerId> release) {
    this.events = events;
    this.release = release;
  }

  @Override
  public void onContainerStarted(ContainerId id, Map<String, ByteBuffer> serviceResponses) {
    events.add(AmEvent.newBuilder().setStarted(id.toString()).build());
  }

  @Override
  public void onStartContainerError(ContainerId id, Throwable error) {
    events.add(AmEvent.newBuilder().setStartError(AmContainerError.newBuilder().setContainerId(id.toString())
        .setMessage(String.valueOf(error.getMessage()))).build());
    release.accept(id);
  }

  @Override
  public void onStopContainerError(ContainerId id, Throwable error) {
    LOG.warn("{} could not be stopped by its NodeManager, released instead: {}", id, error.toString());
    release.accept(id);
  }

  @Override
  public void onContainerStopped(ContainerId id) {
    // The ResourceManager reports its end.
  }

  @Override
  public void onContainerStatusReceived(ContainerId id, ContainerStatus status) {
    // Never asked for.
  }

  @Override
  public void onGetContainerStatusError(ContainerId id, Throwable error) {
    // Never asked for.
  }

  @Override
  @Deprecated
  public void onContainerResourceIncreased(ContainerId id, Resource resource) {
    // Containers keep their size.
  }

  @Override
  public void onContainerResourceUpdated(ContainerId id, Resource resource) {
    // Containers keep their size.
  }

  @Override
  @Deprecated
  public void onIncreaseContainerResourceError(ContainerId id, Throwable error) {
    // Containers keep their size.
  }

  @Override
  public void onUpdateContainerResourceError(ContainerId id, Throwable error) {
    // Containers keep their size.
  }
}
