package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.nm.ExecutorOfTest;
import isonomy.wire.GpuTag;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.Place;
import isonomy.yarn.scale.SimulatedApp;
import isonomy.yarn.scale.SimulatedNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.resource.PlacementConstraints;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * A real ResourceManager and the real executors' part that gives GPUs, in one JVM: leased and plain containers start and
 * end in any order, while modes change and NodeManagers restart.
 */
@Timeout(600)
class OneAllocatorTest {
  private static final int LAUNCHES = 1_000;
  private static final int NODES = 3;
  private static final int GPUS = 4;

  /** STOCK: CapacityScheduler without us, as of a ResourceManager that was configured and restarted so. */
  private enum Mode { ON, SHADOW, OFF, STOCK }

  /** Nothing of the control plane is needed: the test decides. */
  public static final class TestScheduler extends IsonomyScheduler {
    static volatile boolean stock;

    @Override
    ControlPlane link(BridgeConfig config, int deadlineMs) {
      ScriptedControlPlane control = new ScriptedControlPlane();
      return control;
    }

    @Override
    boolean numbers(RMNode node) {
      return !stock && super.numbers(node);
    }
  }

  private final class Node extends SimulatedNode {
    final ExecutorOfTest executor;

    Node(int number, Path dir) throws Exception {
      super(rm.getResourceTrackerService(), number, Resource.newInstance(65536, 64, Map.of(Gpus.RESOURCE, (long) GPUS)));
      executor = new ExecutorOfTest(dir);
    }

    @Override
    protected Set<NodeAttribute> attributes() {
      return executor == null ? null : executor.attributes();
    }

    @Override
    protected void stop(ContainerId id) {
      Running stopped = running.get(id);
      if (stopped != null) {
        finish(stopped);
      }
    }
  }

  /** A container's processes. */
  private final class Running {
    final Container container;
    final Node node;
    final CountDownLatch started = new CountDownLatch(1);
    final CountDownLatch end = new CountDownLatch(1);
    Future<Integer> exit;

    Running(Container container) {
      this.container = container;
      this.node = nodes.get(container.getNodeId());
    }

    void use(ContainerTokenIdentifier token, List<Integer> gpuIds) {
      Set<String> tags = token.getAllcationTags();
      GpuTag tag = GpuTag.read(tags, Gpus.of(container.getResource()));
      if (gpuIds.size() != Gpus.of(container.getResource()) || tag != null && !tag.gpuIds().equals(gpuIds)) {
        wrong.add(container.getId() + " with tags " + tags + " has GPUs " + gpuIds);
      }
      untagged.addAndGet(tag == null ? 1 : 0);
      for (int id : gpuIds) {
        ContainerId other = holders.putIfAbsent(node.id + " GPU " + id, container.getId());
        if (other != null) {
          wrong.add(node.id + " GPU " + id + " is given to " + container.getId() + ", " + other + " has it");
        }
      }
      started.countDown();
      awaitEnd();
      holders.values().removeIf(container.getId()::equals);
    }

    void awaitEnd() {
      try {
        end.await();
      } catch (InterruptedException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  @TempDir
  Path dir;

  private final Random random = new Random(30);
  private final ExecutorService threads = Executors.newCachedThreadPool();
  private final Map<NodeId, Node> nodes = new HashMap<>();
  private final Map<ContainerId, Running> running = new ConcurrentHashMap<>();
  private final Map<String, ContainerId> holders = new ConcurrentHashMap<>();
  private final List<Container> inFlight = new ArrayList<>();
  private final List<String> wrong = Collections.synchronizedList(new ArrayList<>());
  private final Map<Mode, Integer> launched = new EnumMap<>(Mode.class);
  private final YarnConfiguration conf = new YarnConfiguration();
  private ResourceManager rm;
  private SimulatedApp served;
  private SimulatedApp plain;
  private Mode mode = Mode.ON;
  private long requestId;
  private int leases;
  private final AtomicInteger untagged = new AtomicInteger();

  @BeforeEach
  void start() throws Exception {
    conf.set(YarnConfiguration.RM_SCHEDULER, TestScheduler.class.getName());
    conf.set("isonomy.bridge.token-file", "unused");
    conf.set(Managed.MODE, "on");
    conf.set(Managed.QUEUES, "root.served");
    conf.set(ModeStore.FOLDER, dir.toString());
    for (String name : List.of("", "scheduler.", "resource-tracker.", "admin.", "webapp.")) {
      conf.set("yarn.resourcemanager." + name + "address", "127.0.0.1:0");
    }
    conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
    conf.setLong(YarnConfiguration.RM_NM_EXPIRY_INTERVAL_MS, 3_600_000);
    conf.setLong(YarnConfiguration.RM_AM_EXPIRY_INTERVAL_MS, 3_600_000);
    conf.set(YarnConfiguration.RM_PLACEMENT_CONSTRAINTS_HANDLER, YarnConfiguration.SCHEDULER_RM_PLACEMENT_CONSTRAINTS_HANDLER);
    conf.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    conf.set("yarn.scheduler.capacity.node-locality-delay", "-1");
    conf.set("yarn.scheduler.capacity.root.queues", "served,plain");
    for (String queue : List.of("root.served", "root.plain")) {
      conf.set("yarn.scheduler.capacity." + queue + ".capacity", "50");
      conf.set("yarn.scheduler.capacity." + queue + ".maximum-capacity", "100");
      conf.set("yarn.scheduler.capacity." + queue + ".user-limit-factor", "100");
    }
    conf.set(YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR, Files.createDirectory(dir.resolve("rm")).toUri().toString());
    rm = new ResourceManager();
    rm.init(conf);
    rm.start();
    for (int i = 1; i <= NODES; i++) {
      Node node = new Node(i, Files.createDirectory(dir.resolve("nm" + i)));
      nodes.put(node.id, node);
      node.register(List.of());
      node.heartbeat();
    }
    served = new SimulatedApp(rm, Map.of(), "alice", "served", 0);
    plain = new SimulatedApp(rm, Map.of(), "bob", "plain", 0);
  }

  @AfterEach
  void stop() throws InterruptedException {
    TestScheduler.stock = false;
    running.values().forEach(r -> r.end.countDown());
    threads.shutdown();
    assertTrue(threads.awaitTermination(60, TimeUnit.SECONDS));
    rm.stop();
  }

  private IsonomyScheduler scheduler() {
    return (IsonomyScheduler) rm.getResourceScheduler();
  }

  private <T> T any(List<T> list) {
    return list.get(random.nextInt(list.size()));
  }

  private void beat() throws Exception {
    for (Node node : nodes.values()) {
      node.heartbeat();
    }
    for (SimulatedApp app : List.of(served, plain)) {
      inFlight.addAll(app.allocate(List.of(), List.of(), List.of()));
    }
  }

  // ---- what can happen

  /** An app asks for a container, which comes, if at all, within some heartbeats. */
  private void ask() throws Exception {
    SimulatedApp app = random.nextBoolean() ? served : plain;
    int gpus = 1 + random.nextInt(2);
    boolean constrained = app == plain && random.nextInt(3) == 0;
    long id = ++requestId;
    int before = inFlight.size();
    ask(app, gpus, id, 1, constrained);
    if (mode == Mode.ON && app == served) {
      for (int i = 0; i < 5 && !place(gpus, id); i++) {}
    }
    for (int i = 0; i < 8 && inFlight.size() == before; i++) {
      beat();
      Thread.sleep(2);  // the ResourceManager's dispatchers work meanwhile
    }
    ask(app, gpus, id, 0, constrained);
  }

  private void ask(SimulatedApp app, int gpus, long id, int count, boolean constrained) throws Exception {
    Resource size = Resource.newInstance(1024, 1, Map.of(Gpus.RESOURCE, (long) gpus));
    List<ResourceRequest> asks = constrained ? List.of() : List.of(ResourceRequest.newBuilder()
        .priority(Priority.newInstance(1)).resourceName("*").capability(size).numContainers(count)
        .allocationRequestId(id).build());
    List<SchedulingRequest> requests = !constrained ? List.of() : List.of(SchedulingRequest.newBuilder()
        .priority(Priority.newInstance(1)).allocationRequestId(id).allocationTags(Set.of("own"))
        .placementConstraintExpression(PlacementConstraints.build(PlacementConstraints.cardinality("node", 0, 99, "own")))
        .resourceSizing(ResourceSizing.newInstance(count, size)).build());
    inFlight.addAll(app.allocate(asks, requests, List.of()));
  }

  /** The control plane knows no better than to try. */
  private boolean place(int gpus, long id) {
    List<Integer> ids = new ArrayList<>(List.of(0, 1, 2, 3));
    Collections.shuffle(ids, random);
    boolean placed = scheduler().carryOut(Directive.newBuilder().setPlace(Place.newBuilder()
        .setAttemptId(served.attempt.toString()).setAllocationRequestId(id).setPriority(1)
        .setNodeId(any(new ArrayList<>(nodes.keySet())).toString()).addAllGpuIds(ids.subList(0, gpus))
        .setLeaseId("lease-" + id).setMemoryMb(1024).setVcores(1)).build()).getOk();
    leases += placed ? 1 : 0;
    return placed;
  }

  private void launch(Container container) throws Exception {
    ContainerTokenIdentifier token = UnmanagedApp.token(container);
    Running started = new Running(container);
    running.put(container.getId(), started);
    started.node.start(container.getId());
    started.exit = threads.submit(
        () -> started.node.executor.launch(token, gpuIds -> started.use(token, gpuIds)));
    for (int i = 0; !started.started.await(10, TimeUnit.MILLISECONDS); i++) {
      assertTrue(i < 1_000 && !started.exit.isDone(), () -> container.getId() + " with tags " + token.getAllcationTags()
          + " does not start on " + container.getNodeId() + "; in use: " + holders);
      beat();  // what was to end ends
    }
    launched.merge(mode, 1, Integer::sum);
  }

  /** A container ends of itself, or its master releases it and it ends later. */
  private void end(Running ending) throws Exception {
    if (random.nextBoolean()) {
      finish(ending);
    } else {
        boolean leased = ending.container.getId().getApplicationAttemptId().equals(served.attempt);
      inFlight.addAll((leased ? served : plain).allocate(List.of(), List.of(), List.of(ending.container.getId())));
    }
  }

  private void finish(Running ended) {
    ended.end.countDown();
    try {
      assertEquals(0, ended.exit.get(60, TimeUnit.SECONDS));
    } catch (Exception e) {
      wrong.add(ended.container.getId() + ": " + e);
    }
    running.remove(ended.container.getId());
    ended.node.end(ended.container.getId());
  }

  private void change() throws Exception {
    Mode next = mode == Mode.ON ? any(List.of(Mode.SHADOW, Mode.OFF, Mode.STOCK)) : any(Arrays.asList(Mode.values()));
    if ((next == Mode.STOCK) != (mode == Mode.STOCK)) {
      // A ResourceManager that restarts forgets what was not launched.
      beat();
      while (!inFlight.isEmpty()) {
        launch(inFlight.remove(0));
      }
    }
    mode = next;
    TestScheduler.stock = next == Mode.STOCK;
    String named = next == Mode.STOCK ? "off" : next.name().toLowerCase(Locale.ROOT);
    scheduler().modeSwitch.to(named, List.of("root.served"), "the test");
  }

  private void restart(Node node) throws Exception {
    node.executor.restart();
    for (Running here : running.values()) {
      if (here.node == node) {
        threads.submit(() -> {
          node.executor.reacquire(here.container.getId(), here::awaitEnd);
          return null;
        });
      }
    }
    node.register(List.of(served.attempt.getApplicationId(), plain.attempt.getApplicationId()));
    node.heartbeat();
  }

  private int launches() {
    return launched.values().stream().mapToInt(n -> n).sum();
  }

  @Test
  void noGpuHasTwoContainersAndNoContainerNone() throws Exception {
    int restarts = 0;
    int changes = 0;
    while (launches() < LAUNCHES) {
      int dice = random.nextInt(1000);
      if (dice < 5) {
        restart(any(new ArrayList<>(nodes.values())));
        restarts++;
      } else if (dice < 15) {
        change();
        changes++;
      } else if (dice < 350 && running.size() + inFlight.size() < NODES * GPUS / 2) {
        ask();
      } else if (dice < 700 && !inFlight.isEmpty()) {
        launch(inFlight.remove(random.nextInt(inFlight.size())));
      } else if (running.size() > random.nextInt(8)) {
        end(any(new ArrayList<>(running.values())));
      }
      assertEquals(List.of(), wrong);
    }
    String all = launched + ", " + leases + " leases, " + untagged + " without tags, " + changes + " changes of mode, "
        + restarts + " restarts";
    System.out.println("launches " + all);
    assertTrue(untagged.get() <= launched.get(Mode.STOCK) + LAUNCHES / 50, "the scheduler names the GPUs: " + all);
    assertTrue(launched.size() == 4 && leases > 20 && untagged.get() > 20 && restarts > 3 && changes > 10, all);
  }
}
