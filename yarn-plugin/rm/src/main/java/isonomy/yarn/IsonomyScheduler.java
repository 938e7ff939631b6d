package isonomy.yarn;

import isonomy.wire.v1.Ask;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.Snapshot;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.SettableFuture;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerEventType;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.Allocation;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ContainerUpdates;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplication;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ResourceCommitRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeAddedSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEvent;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * CapacityScheduler with GPUs left to the control plane: asks with GPUs are held back and reported to it, and it
 * answers with the node and the GPU ids of each container. All other asks go through the queues as usual.
 *
 * <p>In mode `shadow` nothing is held back and no directive is carried out: the control plane only sees what
 * CapacityScheduler does, and the ResourceManager never reports that it is ready to place containers.
 *
 * <p>An AM that asks for GPUs in its own container is held back too: no container has a GPU without a lease. In mode
 * `off` this is plain CapacityScheduler, as it always is for queues that the mode does not name. While the mode cannot
 * be read, all GPU asks are held back and nothing is carried out.
 *
 * <p>Failures of this class are logged and never thrown into the ResourceManager, which they would end; the control
 * plane then gets a snapshot instead of the events that it missed.
 */
public class IsonomyScheduler extends CapacityScheduler implements Bridge.Cluster {
  private static final Logger LOG = LoggerFactory.getLogger(IsonomyScheduler.class);

  final AskBook asks = new AskBook(ask -> emit(() -> Event.newBuilder().setAsk(told(ask))));
  private final DrainingContainers ending = new DrainingContainers((gone, end) -> this.events.drained(gone, end));
  private final GpuIds ids = new GpuIds(this, ending);
  private final ClusterView view = new ClusterView(this, ending, ids);
  /** Also for containers that are placed without the scheduler's own events. */
  final SchedulerEvents events = new SchedulerEvents(this, view, asks, ending);
  private final Directives directives = new Directives(this, asks, ids);
  /** Null before start, and where yarn-site.xml does not say how to reach the control plane. */
  volatile Bridge bridge;
  /** Null before start. */
  volatile ModeSwitch modeSwitch;
  volatile Managed managed = Managed.nothing();
  private volatile boolean requireExecutor;
  /** Held while an attempt's asks are read and reported, so that the latest are reported last. */
  private final Object shadowing = new Object();

  // ---- life

  @Override
  public void serviceInit(Configuration conf) throws Exception {
    requireExecutor = conf.getBoolean(Managed.REQUIRE_EXECUTOR, true);
    AskGate.addTo(conf);
    super.serviceInit(conf);
  }

  /** When this ResourceManager becomes active; what it recovered before is handed over with the mode. */
  @Override
  public void serviceStart() throws Exception {
    super.serviceStart();
    openMode();
  }

  void openMode() {
    modeSwitch = new ModeSwitch(ModeStore.beside(rmContext, getConfig()), getConfig(),
        wanted -> BridgeConfig.hindrance(wanted, getConfig()),
        wanted -> guarded("the change of mode", () -> change(wanted)));
    modeSwitch.open();
  }

  /** In each mode, so that the control plane knows the mode. */
  private void startBridge() {
    try {
      BridgeConfig config = new BridgeConfig(getConfig());
      Bridge started = new Bridge(this, link(config, Bridge.EXCHANGE_MS),
          link(config, Bridge.POLL_MS + Bridge.EXCHANGE_MS), link(config, Bridge.QUERY_MS), config.queueSize);
      bridge = started;
      if (isInState(STATE.STOPPED)) {
        stopBridge();  // the scheduler's stop may have come before there was this one
      } else {
        started.start();
      }
    } catch (IllegalArgumentException e) {
      LOG.warn("The control plane is told nothing: {}", e.getMessage());
    }
  }

  private void stopBridge() {
    Bridge old = bridge;
    bridge = null;
    if (old != null) {
      old.close();
    }
  }

  @Override
  public void serviceStop() throws Exception {
    if (modeSwitch != null) {
      modeSwitch.close();
    }
    stopBridge();
    super.serviceStop();
  }

  /** A link to the control plane; `deadlineMs`: how long one call may take. */
  ControlPlane link(BridgeConfig config, int deadlineMs) {
    return new Py4jControlPlane(config, deadlineMs);
  }

  /** `yarn rmadmin -refreshQueues`, which also reads yarn-site.xml. */
  @Override
  public void reinitialize(Configuration conf, RMContext context) throws IOException {
    super.reinitialize(conf, context);
    requireExecutor = conf.getBoolean(Managed.REQUIRE_EXECUTOR, true);
    if (modeSwitch != null) {
      modeSwitch.warnOfObsoleteKeys(conf);
    }
    resend();
  }

  private void change(Managed wanted) {
    LOG.info("The mode is {}; before it was {}", wanted, managed);
    // A new life of the bridge: what happens while the mode is off is not reported.
    boolean anew = bridge == null || !wanted.isOn() || !managed.isOn();
    if (anew) {
      stopBridge();
    }
    try {
      underWriteLock(() -> {
        managed = wanted;
        for (SchedulerApplication<FiCaSchedulerApp> app : applications.values()) {
          FiCaSchedulerApp attempt = app.getCurrentAppAttempt();
          if (attempt != null && !attempt.isStopped()) {
            // One by one: CapacityScheduler refuses some apps' asks.
            guarded("the asks of " + attempt.getApplicationAttemptId(), () -> handOver(attempt));
          }
        }
      });
    } finally {
      if (anew) {
        startBridge();
      } else {
        resend();
      }
    }
  }

  /** Moves an attempt's asks for GPUs to the control plane or to CapacityScheduler, whichever serves its queue. */
  private void handOver(FiCaSchedulerApp app) {
    ApplicationAttemptId id = app.getApplicationAttemptId();
    if (manages(id)) {
      asks.open(id, pendingOf(id));
      List<ResourceRequest> taken = AskBook.waiting(app);
      app.updateResourceRequests(taken.stream().map(r -> AskBook.copy(r, 0)).collect(Collectors.toList()));
      asks.ask(id, taken, List.of(), Map.of());
    } else {
      List<ResourceRequest> back = new ArrayList<>();
      List<SchedulingRequest> constrained = new ArrayList<>();
      asks.giveBack(id, back, constrained);
      app.updateResourceRequests(back);
      app.updateSchedulingRequests(constrained);
      shadow(app);
    }
  }

  // ---- guarding the ResourceManager

  /** Runs an action; a failure is logged and does not end the ResourceManager. */
  void guarded(String what, Runnable action) {
    try {
      action.run();
    } catch (Throwable e) {
      LOG.error("Isonomy failed on {}; the ResourceManager continues, the control plane gets a snapshot", what, e);
      resend();
    }
  }

  private void whenOn(String what, Runnable action) {
    if (managed.isOn()) {
      guarded(what, action);
    }
  }

  void resend() {
    Bridge to = bridge;
    if (to != null) {
      to.resend();
    }
  }

  /** Sends an event if there is a bridge; before that the first snapshot will contain it. */
  void emit(Supplier<Event.Builder> event) {
    Bridge to = managed.isOn() ? bridge : null;
    Event.Builder made = to == null ? null : event.get();
    if (made != null) {
      to.emit(made);
    }
  }

  // ---- asks

  boolean manages(CSQueue queue) {
    return managed.has(queue.getQueuePath());
  }

  boolean manages(ApplicationAttemptId id) {
    FiCaSchedulerApp app = getApplicationAttempt(id);
    return managed.isOn() && app != null && app.getQueue() instanceof CSQueue && manages((CSQueue) app.getQueue());
  }

  /** What the node's host reports of itself. */
  Map<String, String> attributes(RMNode node) {
    return ClusterView.attributes(rmContext.getNodeAttributesManager().getAttributesForNode(node.getHostName()));
  }

  private boolean hasExecutor(RMNode node) {
    return !attributes(node).getOrDefault(Managed.EXECUTOR, "").isEmpty();
  }

  /** Why nothing is placed on a node; empty where something may be. */
  String withheld(RMNode node) {
    return !requireExecutor || hasExecutor(node) ? "" : "its NodeManager has no Isonomy executor (node attribute "
        + Managed.EXECUTOR + ", yarn.nodemanager.container-executor.class)";
  }

  /** Whether tokens name the GPUs of each container on a node: there an executor obeys them. */
  boolean numbers(RMNode node) {
    return hasExecutor(node) || managed.places() && !requireExecutor;
  }

  /** Whether an update may not change the GPUs of a container. */
  boolean fixesGpus(RMContainer container) {
    FiCaSchedulerNode node = getNode(container.getAllocatedNode());
    return manages(container.getApplicationAttemptId()) || node != null && numbers(node.getRMNode());
  }

  @Override
  public Allocation allocate(
      ApplicationAttemptId id,
      List<ResourceRequest> ask,
      List<SchedulingRequest> constrained,
      List<ContainerId> release,
      List<String> blacklistAdditions,
      List<String> blacklistRemovals,
      ContainerUpdates updates) {
    if (constrained != null) {
      constrained.forEach(Gpus::strip);
    }
    if (!manages(id)) {
      Allocation served =
          super.allocate(id, ask, constrained, release, blacklistAdditions, blacklistRemovals, updates);
      if (managed.isShadow() && ask != null && ask.stream().anyMatch(r -> Gpus.of(r.getCapability()) > 0)) {
        guarded("an ask of " + id, () -> shadow(getApplicationAttempt(id)));
      }
      return served;
    }
    List<ResourceRequest> others = new ArrayList<>();
    List<ResourceRequest> held = new ArrayList<>();
    for (ResourceRequest r : ask == null ? List.<ResourceRequest>of() : ask) {
      (Gpus.of(r.getCapability()) > 0 ? held : others).add(r);
    }
    List<SchedulingRequest> otherConstrained = constrained == null ? null : new ArrayList<>();
    List<SchedulingRequest> heldConstrained = new ArrayList<>();
    for (SchedulingRequest r : constrained == null ? List.<SchedulingRequest>of() : constrained) {
      (Gpus.of(r) > 0 ? heldConstrained : otherConstrained).add(r);
    }
    if (!held.isEmpty() || !heldConstrained.isEmpty()) {
      AtomicBoolean kept = new AtomicBoolean(true);
      guarded("an ask of " + id, () -> kept.set(hold(id, held, heldConstrained)));
      if (!kept.get()) {
        return allocate(id, ask, constrained, release, blacklistAdditions, blacklistRemovals, updates);
      }
    }
    return super.allocate(id, others, otherConstrained, release, blacklistAdditions, blacklistRemovals, updates);
  }

  /** In mode shadow, reports the asks that wait at CapacityScheduler; with or without the scheduler's lock. */
  private void shadow(FiCaSchedulerApp app) {
    // The mode must not change in between: the asks that are held back would count as CapacityScheduler's.
    underReadLock(() -> {
      synchronized (shadowing) {
        if (app != null && app.isStopped()) {
          asks.close(app.getApplicationAttemptId());
        } else if (app != null && managed.isShadow()) {
          asks.open(app.getApplicationAttemptId(), null);
          asks.replace(app.getApplicationAttemptId(), AskBook.waiting(app));
        }
      }
    });
  }

  /** The attempt; null if it does not run. */
  FiCaSchedulerApp running(ApplicationAttemptId id) {
    FiCaSchedulerApp app = getApplicationAttempt(id);
    return app == null || app.isStopped() || !app.getApplicationAttemptId().equals(id) ? null : app;
  }

  /** Records an attempt's asks; false if the mode or its queue has just changed and it is no longer managed. */
  private boolean hold(ApplicationAttemptId id, List<ResourceRequest> held, List<SchedulingRequest> constrained) {
    normalizeResourceRequests(held);
    // No container may be placed between reading the attempt's containers and recording the ask.
    readLock.lock();
    try {
      if (!manages(id)) {
        return false;
      }
      FiCaSchedulerApp app = running(id);
      if (app == null) {
        return true;
      }
      if (!asks.isOpen(id)) {
        asks.open(id, pendingOf(id));  // the master's own container is asked for before its attempt is published
      }
      Map<SchedulerRequestKey, Integer> notPulled = new HashMap<>();
      for (RMContainer container : app.getLiveContainers()) {
        if (container.getState() == RMContainerState.ALLOCATED && Gpus.has(container)) {
          notPulled.merge(Gpus.key(container), 1, Integer::sum);
        }
      }
      asks.ask(id, held, constrained, notPulled);
      return true;
    } finally {
      readLock.unlock();
    }
  }

  /** The ask as the control plane is told it: an attempt without its master's container asks for that. */
  Ask told(Ask ask) {
    FiCaSchedulerApp app = running(ApplicationAttemptId.fromString(ask.getAttemptId()));
    return app != null && app.isWaitingForAMContainer() ? ask.toBuilder().setMaster(true).build() : ask;
  }

  /** Counts an attempt's pending containers in the metrics, as CapacityScheduler does those that it has: null then. */
  AskBook.Pending pendingOf(ApplicationAttemptId id) {
    return manages(id) ? AskBook.pendingIn(getApplicationAttempt(id)) : null;
  }

  /** The placement processor bypasses the asks; not allowed for GPUs. */
  @Override
  public boolean attemptAllocationOnNode(
      SchedulerApplicationAttempt app, SchedulingRequest request, SchedulerNode node) {
    Gpus.strip(request);
    if (Gpus.of(request) > 0 && manages(app.getApplicationAttemptId())) {
      LOG.warn("{} asks for GPUs through the placement processor, which is not possible; set"
          + " yarn.resourcemanager.placement-constraints.handler to scheduler", app.getApplicationAttemptId());
      return false;
    }
    return super.attemptAllocationOnNode(app, request, node);
  }

  /** Each container with GPUs gets its ids here, in whatever mode and queue. */
  @Override
  @SuppressWarnings({"rawtypes", "unchecked"})  // so CapacityScheduler declares it
  public boolean tryCommit(Resource cluster, ResourceCommitRequest request, boolean updatePending) {
    return ids.commit(request, numbered -> super.tryCommit(cluster, numbered, updatePending));
  }

  // ---- events

  @Override
  public void handle(SchedulerEvent event) {
    if (event instanceof NodeAddedSchedulerEvent) {
      // No container may be placed on a node between its registration and the recovery of its containers.
      underWriteLock(() -> super.handle(event));
    } else {
      super.handle(event);
    }
    whenOn("event " + event.getType(), () -> events.publish(event));
  }

  @Override
  public String moveApplication(ApplicationId id, String queue) throws YarnException {
    String moved = super.moveApplication(id, queue);
    whenOn("the move of " + id, () -> {
      SchedulerApplication<FiCaSchedulerApp> app = applications.get(id);
      FiCaSchedulerApp attempt = app == null ? null : app.getCurrentAppAttempt();
      if (attempt != null && !attempt.isStopped()) {
        underWriteLock(() -> handOver(attempt));
      }
      events.updated(id);
    });
    return moved;
  }

  @Override
  public Priority updateApplicationPriority(
      Priority priority, ApplicationId id, SettableFuture<Object> future, UserGroupInformation user)
      throws YarnException {
    Priority updated = super.updateApplicationPriority(priority, id, future, user);
    whenOn("the priority of " + id, () -> events.updated(id));
    return updated;
  }

  @Override
  protected void containerLaunchedOnNode(ContainerId id, SchedulerNode node) {
    super.containerLaunchedOnNode(id, node);
    whenOn("the launch of " + id, () -> {
      events.launched(id, node);
      if (managed.isShadow() && getRMContainer(id) != null && Gpus.has(getRMContainer(id))) {
        shadow(getApplicationAttempt(id.getApplicationAttemptId()));
      }
    });
  }

  @Override
  protected void completedContainerInternal(RMContainer container, ContainerStatus status, RMContainerEventType event) {
    RMContainerState before = container.getState();
    boolean published = managed.isOn() && Gpus.has(container) && getRMContainer(container.getContainerId()) == container;
    super.completedContainerInternal(container, status, event);
    if (published) {
      guarded("the end of " + container.getContainerId(), () -> events.completed(container, before, status, event));
    }
  }

  /** Also handles the end of containers that the scheduler no longer knows. */
  @Override
  public void completedContainer(RMContainer container, ContainerStatus status, RMContainerEventType event) {
    super.completedContainer(container, status, event);
    if (managed.isOn() && container == null && event == RMContainerEventType.FINISHED) {
      guarded("the end of an unknown container", () -> ending.ended(status.getContainerId().toString()));
    }
  }

  // ---- for the bridge

  @Override
  public boolean ready() {
    return managed.places()
        && (!rmContext.isWorkPreservingRecoveryEnabled() || rmContext.isSchedulerReadyForAllocatingContainers());
  }

  @Override
  public DirectiveResult.Builder carryOut(Directive directive) {
    return directives.carryOut(directive);
  }

  @Override
  public Snapshot snapshot(long lastSeq) {
    return view.snapshot().setLastSeq(lastSeq).build();
  }

  // ---- for the plugin's classes, which run under the scheduler's locks

  void underReadLock(Runnable action) {
    readLock.lock();
    try {
      action.run();
    } finally {
      readLock.unlock();
    }
  }

  <E extends Exception> void underWriteLock(Directives.Action<E> action) throws E {
    writeLock.lock();
    try {
      action.run();
    } finally {
      writeLock.unlock();
    }
  }

  /** Allocates one container outside the queues' order, but within their limits. */
  boolean allocateNow(FiCaSchedulerApp app, SchedulingRequest request, FiCaSchedulerNode node) {
    return super.attemptAllocationOnNode(app, request, node);
  }
}
