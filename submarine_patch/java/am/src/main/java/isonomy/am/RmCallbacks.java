package isonomy.am;

import isonomy.wire.v1.AmCompleted;
import isonomy.wire.v1.AmEvent;
import isonomy.wire.v1.AmPreempt;
import java.util.List;
import java.util.function.Consumer;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.NodeReport;
import org.apache.hadoop.yarn.api.records.PreemptionContainer;
import org.apache.hadoop.yarn.api.records.PreemptionMessage;
import org.apache.hadoop.yarn.api.records.UpdatedContainer;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;

/** The ResourceManager's callbacks, passed on as events. */
final class RmCallbacks extends AMRMClientAsync.AbstractCallbackHandler {
  private final EventQueue events;
  private final Consumer<Outcome> end;
  private volatile Containers containers;
  private volatile float progress;

  RmCallbacks(EventQueue events, Consumer<Outcome> end) {
    this.events = events;
    this.end = end;
  }

  /** Sets the containers; call it before the first heartbeat. */
  void connect(Containers known) {
    this.containers = known;
  }

  void setProgress(float fraction) {
    this.progress = Math.max(0f, Math.min(1f, fraction));
  }

  @Override
  public void onContainersAllocated(List<Container> allocated) {
    for (Container container : allocated) {
      if (containers.allocated(container)) {
        events.add(AmEvent.newBuilder().setAllocated(Gpus.describe(container)).build());
      }
    }
  }

  @Override
  public void onContainersReceivedFromPreviousAttempts(List<Container> previous) {
    for (Container container : previous) {
      if (containers.adopt(container)) {
        events.add(AmEvent.newBuilder().setAdopted(Gpus.describe(container)).build());
      }
    }
  }

  @Override
  public void onContainersCompleted(List<ContainerStatus> completed) {
    for (ContainerStatus status : completed) {
      String id = status.getContainerId().toString();
      if (containers.completed(id)) {
        events.add(AmEvent.newBuilder().setCompleted(AmCompleted.newBuilder().setContainerId(id)
            .setExitStatus(status.getExitStatus()).setDiagnostics(status.getDiagnostics())).build());
      }
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
