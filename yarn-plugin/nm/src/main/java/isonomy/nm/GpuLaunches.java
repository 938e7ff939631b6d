package isonomy.nm;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.Uninterruptibles;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.ConfigurationException;
import org.apache.hadoop.yarn.server.nodemanager.ContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerDiagnosticsUpdateEvent;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.resourceplugin.gpu.GpuDevice;
import org.apache.hadoop.yarn.server.nodemanager.executor.ContainerSignalContext;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Shared by both executors: sets a container's visible GPUs, admits one container per GPU, and records evidence.
 *
 * <p>A container whose token names no GPUs, because no plugin placed it, gets ids here that no other container has. They
 * are kept with the container, where YARN's own plugin for GPUs keeps them, too: in the NodeManager's state store.
 */
final class GpuLaunches {
  static final String EVIDENCE_FILE = "isonomy.nm.evidence-file";
  static final String GPU_WAIT_MS = "isonomy.nm.gpu-wait-ms";
  static final String VISIBLE = "CUDA_VISIBLE_DEVICES";
  /** Numbers GPUs as nvidia-smi does; else CUDA's number 0 is the fastest. */
  static final String ORDER = "CUDA_DEVICE_ORDER";
  static final String LEASE = "ISONOMY_LEASE";
  private static final long GPU_WAIT_MS_DEFAULT = 30_000;
  /** Extra time for a container's processes after YARN's delay between SIGTERM and SIGKILL. */
  private static final long GRACE_MS = 5_000;
  private static final long POLL_MS = 50;
  /** Exit code of a container that could not start through no fault of its own; the Agent knows it too. */
  static final int NOT_STARTED = 76;
  private static final Logger LOG = LoggerFactory.getLogger(GpuLaunches.class);

  /** What the executor's parent class does, to the end of the container: its launch, or waiting for one that runs. */
  interface Run<E extends Exception> {
    int run() throws IOException, E;
  }

  private interface Gated<T> {
    T run() throws InterruptedException;
  }

  /** By the NodeManager's configuration: its executor and its attributes provider share nothing else. */
  private static final Map<Configuration, GpuLaunches> OF = Collections.synchronizedMap(new WeakHashMap<>());

  private final Context nm;
  private final ContainerExecutor executor;
  private final Evidence evidence;
  final Idleness idleness = new Idleness();
  private final GpuGate gate = new GpuGate();
  /** Of each container whose processes survived SIGKILL, which keeps its GPUs: frees them if it has ended by now. */
  private final Set<BooleanSupplier> overstayers = ConcurrentHashMap.newKeySet();
  /** GPUs of the machine; 0 where YARN's own plugin counts them and gives them out. */
  private final int total;
  private final int[] minors;
  private final long waitMs;
  private final long graceMs;

  GpuLaunches(Context nm, Configuration conf, ContainerExecutor executor) {
    this.nm = nm;
    this.executor = executor;
    this.waitMs = conf.getLong(GPU_WAIT_MS, GPU_WAIT_MS_DEFAULT);
    this.graceMs = GRACE_MS + conf.getLong(
        YarnConfiguration.NM_SLEEP_DELAY_BEFORE_SIGKILL_MS, YarnConfiguration.DEFAULT_NM_SLEEP_DELAY_BEFORE_SIGKILL_MS);
    // Asked for with each line: YARN names the node after its executor's init.
    this.evidence = new Evidence(evidenceFile(conf), () -> nm.getNodeId().getHost());
    ResourceInformation gpus = ResourceUtils.getNodeResourceInformation(conf).get(ResourceInformation.GPU_URI);
    this.total = gpus == null ? 0 : (int) gpus.getValue();
    this.minors = conf.getInts(GpuDevices.MINORS);
    OF.put(conf, this);
    if (executor instanceof LinuxContainerExecutor && !Session.seesOthers(Session.PROC)) {
      LOG.error("{} hides the processes of others (hidepid, ProtectProc): GPUs are given on while they still use them;"
          + " mount it with gid= of a group of the NodeManager's user", Session.PROC);
    }
  }

  /** Null before the executor was made. */
  static GpuLaunches of(Configuration conf) {
    return OF.get(conf);
  }

  private static Path evidenceFile(Configuration conf) {
    String file = conf.getTrimmed(EVIDENCE_FILE, "");
    if (!file.isEmpty()) {
      return Path.of(file);
    }
    String local = conf.getTrimmedStrings(YarnConfiguration.NM_LOCAL_DIRS, "/tmp/nm-local-dir")[0];
    return Path.of(local.replaceFirst("^file:", "")).resolveSibling("isonomy-evidence.jsonl");
  }

  /** Sets the visible GPUs from the token that the ResourceManager signed, or allots them; overrides the AM's value. */
  void visible(Map<String, String> environment, LinkedHashSet<String> nmVars) throws IOException {
    String id = environment.get("CONTAINER_ID");
    Container container = id == null ? null : nm.getContainers().get(ContainerId.fromString(id));
    GpuUse use = container == null ? null : allot(container);
    if (use != null && use.unmanaged && total == 0) {
      return;
    }
    environment.put(VISIBLE, use == null ? "" : use.visibleDevices());
    environment.put(ORDER, "PCI_BUS_ID");
    environment.put(LEASE, use == null ? "" : use.lease);
    nmVars.addAll(List.of(VISIBLE, ORDER, LEASE));
  }

  /** Null for a container that the NodeManager does not know. */
  GpuUse use(ContainerId id) {
    Container container = nm.getContainers().get(id);
    return container == null ? null : use(container);
  }

  int launch(Container container, Run<ConfigurationException> launch) throws IOException, ConfigurationException {
    GpuUse use = use(container);
    if (use.gpuIds.isEmpty() && !(use.unmanaged && total > 0)) {
      return launch.run();
    }
    String held = enter(use);
    if (held != null) {
      // A failed launch would exit with -1 and count as the job's failure, which it is not.
      LOG.warn("{} does not start: {}", use.container, held);
      container.handle(new ContainerDiagnosticsUpdateEvent(container.getContainerId(), held + "\n"));
      return NOT_STARTED;
    }
    return holding(container, use, () -> {
      evidence.started(use);
      return launch.run();
    });
  }

  /** Reserves the container's GPUs again after a restart of the NodeManager, and waits for it. */
  int reacquire(ContainerId id, Run<InterruptedException> wait) throws IOException, InterruptedException {
    Container container = nm.getContainers().get(id);
    if (container == null || use(container).gpuIds.isEmpty()) {
      return wait.run();
    }
    GpuUse use = use(container);
    String held = enter(use);
    if (held != null) {
      throw new IOException(held);
    }
    return holding(container, use, wait);
  }

  /** Runs a container that has entered, and frees its GPUs; not if the NodeManager stops, for then it runs on. */
  private <E extends Exception> int holding(Container container, GpuUse use, Run<E> run) throws IOException, E {
    int exitCode = -1;
    boolean runsOn = false;
    try {
      idleness.watch(use, () -> {
        String leader = executor.getProcessId(container.getContainerId());
        return leader == null ? -1 : Session.cpuMs(leader, use.container);
      });
      exitCode = run.run();
      return exitCode;
    } catch (Exception e) {
      runsOn = e instanceof InterruptedException || e instanceof InterruptedIOException;
      throw e;
    } finally {
      idleness.forget(use);
      if (!runsOn) {
        leave(container, use, exitCode);
      }
    }
  }

  /** The container's GPUs; allots them first if its token names none. */
  private GpuUse allot(Container container) throws IOException {
    forgetEnded();
    synchronized (gate) {
      GpuUse use = use(container);
      if (!use.unmanaged || total == 0 || !use.gpuIds.isEmpty()) {
        return use;
      }
      List<Integer> ids = uninterrupted(use, () -> gate.free(use.gpus, total, () -> named(container), waitMs));
      if (ids != null) {
        List<Serializable> devices = new ArrayList<>();
        ids.forEach(id -> devices.add(new GpuDevice(id, id < minors.length ? minors[id] : id)));
        nm.getNMStateStore().storeAssignedResources(container, ResourceInformation.GPU_URI, devices);
      }
      return use(container);
    }
  }

  /** The GPUs of all other containers that have not ended. */
  private Set<Integer> named(Container but) {
    Set<Integer> named = new HashSet<>();
    nm.getContainers().values().stream().filter(c -> c != but && !c.isContainerInFinalStates())
        .forEach(c -> named.addAll(use(c).gpuIds));
    return named;
  }

  /** By GPU the container that has it and whose token does not say so. */
  Map<Integer, String> allotted() {
    Map<Integer, String> allotted = new TreeMap<>();
    for (Container container : nm.getContainers().values()) {
      GpuUse use = use(container);
      if (use.unmanaged && !container.isContainerInFinalStates()) {
        use.gpuIds.forEach(id -> allotted.put(id, use.container));
      }
    }
    return allotted;
  }

  private void forgetEnded() {
    overstayers.removeIf(BooleanSupplier::getAsBoolean);
  }

  /** Takes the container's GPUs; why the others did not free them in time, or null. */
  private String enter(GpuUse use) throws IOException {
    forgetEnded();
    if (use.gpuIds.isEmpty()) {
      return "other containers still held the GPUs after " + waitMs + " ms (" + GPU_WAIT_MS + ")";
    }
    String other = uninterrupted(use, () -> gate.enter(use, waitMs));
    if (other != null) {
      return "GPUs " + use.visibleDevices() + " are still held by " + other + " after " + waitMs + " ms (" + GPU_WAIT_MS
          + ")";
    }
    LOG.info("{} has GPUs {} by lease {}", use.container, use.visibleDevices(), use.lease);
    return null;
  }

  private static <T> T uninterrupted(GpuUse use, Gated<T> action) throws IOException {
    try {
      return action.run();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw (IOException) new InterruptedIOException(use.container + " waited for its GPUs").initCause(e);
    }
  }

  /** Frees the GPUs once all processes have ended; the parent class waits only for the container's shell. */
  private void leave(Container container, GpuUse use, int exitCode) {
    String leader = executor.getProcessId(container.getContainerId());
    if (!awaitEnd(leader, use.container, graceMs)) {
      LOG.warn("Processes of {} continue {} ms after its end; they are killed", use.container, graceMs);
      for (String group : Session.groups(leader, use.container)) {
        try {
          executor.signalContainer(new ContainerSignalContext.Builder().setContainer(container)
              .setUser(container.getUser()).setPid(group).setSignal(ContainerExecutor.Signal.KILL).build());
        } catch (IOException e) {
          LOG.error("Process group {} of {} cannot be killed", group, use.container, e);
        }
      }
      if (!awaitEnd(leader, use.container, GRACE_MS)) {
        LOG.error("Processes of {} cannot be killed: GPUs {} stay blocked", use.container, use.visibleDevices());
        overstayers.add(() -> openIfEnded(leader, use, exitCode));
        return;
      }
    }
    open(use, exitCode);
  }

  private boolean openIfEnded(String leader, GpuUse use, int exitCode) {
    boolean ended = Session.groups(leader, use.container).isEmpty();
    if (ended) {
      open(use, exitCode);
    }
    return ended;
  }

  private void open(GpuUse use, int exitCode) {
    evidence.ended(use, exitCode);
    gate.leave(use);
  }

  /** Whether all processes of the container have ended in time. */
  private static boolean awaitEnd(String leader, String container, long timeoutMs) {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    Set<String> left = Session.groups(leader, container);
    while (!left.isEmpty() && System.nanoTime() - end <= 0) {
      Uninterruptibles.sleepUninterruptibly(POLL_MS, TimeUnit.MILLISECONDS);
      left = Session.groups(leader, container);
    }
    return left.isEmpty();
  }

  private static GpuUse use(Container container) {
    List<Integer> allotted = container.getResourceMappings().getAssignedResources(ResourceInformation.GPU_URI).stream()
        .filter(GpuDevice.class::isInstance).map(device -> ((GpuDevice) device).getIndex()).collect(Collectors.toList());
    return GpuUse.of(container.getContainerTokenIdentifier(), allotted);
  }
}
