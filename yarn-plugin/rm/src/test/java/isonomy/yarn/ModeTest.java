package isonomy.yarn;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.Mockito.doAnswer;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.never;
import static org.mockito.Mockito.verify;
import static org.mockito.Mockito.when;

import isonomy.wire.v1.Ask;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.service.ServiceOperations;
import org.apache.hadoop.util.curator.ZKCuratorManager;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.SchedulerInvalidResourceRequestException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.NullRMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.RMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.ZKRMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ContainerUpdates;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplication;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueueMetrics;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.LeafQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Where the mode lies, and how it is read and switched. */
@Timeout(60)
class ModeTest {
  @TempDir
  Path dir;

  private final Configuration conf = new YarnConfiguration();
  private final BlockingQueue<Managed> applied = new LinkedBlockingQueue<>();

  private ModeStore beside(RMStateStore state) throws IOException {
    RMContext context = mock(RMContext.class);
    ResourceManager rm = mock(ResourceManager.class);
    when(context.getStateStore()).thenReturn(state);
    when(context.getResourceManager()).thenReturn(rm);
    when(rm.createAndStartZKManager(any())).thenAnswer(call -> {
      ZKCuratorManager started = new ZKCuratorManager(call.getArgument(0));
      started.start();
      return started;
    });
    return ModeStore.beside(context, conf);
  }

  private ModeStore folder() throws IOException {
    conf.set(ModeStore.FOLDER, dir.resolve("mode").toString());
    return beside(new NullRMStateStore());
  }

  private ModeSwitch opened(ModeStore store) {
    ModeSwitch made = new ModeSwitch(store, conf, wanted -> "", applied::add);
    made.open();
    return made;
  }

  /** A scheduler without a ResourceManager, whose control plane does not answer. */
  private class Scheduler extends IsonomyScheduler {
    /** What happens in the middle of the next ask for GPUs. */
    Callable<?> whileAsking = () -> null;

    Scheduler() {
      conf.set("isonomy.bridge.token-file", "unused");
      conf.set(ModeStore.FOLDER, dir.resolve("mode").toString());
      setConfig(conf);
      rmContext = mock(RMContext.class);
      applications = new ConcurrentHashMap<>();
    }

    /** What happens while a bridge is made. */
    Runnable whileLinking = () -> { };

    @Override
    ControlPlane link(BridgeConfig config, int deadlineMs) {
      whileLinking.run();
      return request -> {
        throw new BridgeException("nobody listens (test)");
      };
    }

    @Override
    protected void normalizeResourceRequests(List<ResourceRequest> asks) {
      Callable<?> now = whileAsking;
      whileAsking = () -> null;
      assertDoesNotThrow(now::call);
    }

    /** An application in root.default. */
    FiCaSchedulerApp app(int number) {
      ApplicationId id = ApplicationId.newInstance(1, number);
      LeafQueue queue = mock(LeafQueue.class);
      when(queue.getQueuePath()).thenReturn("root.default");
      when(queue.getMetrics()).thenReturn(mock(CSQueueMetrics.class));
      FiCaSchedulerApp attempt = mock(FiCaSchedulerApp.class);
      when(attempt.getApplicationAttemptId()).thenReturn(ApplicationAttemptId.newInstance(id, 1));
      when(attempt.getQueue()).thenReturn(queue);
      when(attempt.getAppSchedulingInfo()).thenReturn(mock(AppSchedulingInfo.class));
      when(attempt.getWriteLock()).thenReturn(new ReentrantReadWriteLock().writeLock());
      SchedulerApplication<FiCaSchedulerApp> app = new SchedulerApplication<>(queue, "ann", false);
      app.setCurrentAppAttempt(attempt);
      applications.put(id, app);
      return attempt;
    }
  }

  private Scheduler switchedOn() throws IOException {
    Scheduler scheduler = new Scheduler();
    scheduler.openMode();
    scheduler.modeSwitch.to("on", null, "ann");
    return scheduler;
  }

  private static void ask(Scheduler scheduler, FiCaSchedulerApp app) {
    scheduler.allocate(app.getApplicationAttemptId(), List.of(gpu()), null, List.of(), List.of(), List.of(),
        new ContainerUpdates());
  }

  private static ResourceRequest gpu() {
    return ResourceRequest.newInstance(
        Priority.newInstance(1), "*", Resource.newInstance(256, 1, Map.of(Gpus.RESOURCE, 1L)), 1);
  }

  private static void keeps(ModeStore store) throws IOException {
    assertNull(store.read());
    for (String content : List.of("first, and longer", "second")) {
      store.write(content.getBytes(UTF_8));
      assertArrayEquals(content.getBytes(UTF_8), store.read());
    }
  }

  @Test
  void inALocalFolder() throws IOException {
    keeps(folder());
    assertEquals("second", Files.readString(dir.resolve("mode/isonomy-mode.json")));
    Files.writeString(dir.resolve("mode/isonomy-mode.json"), "by hand");
    assertArrayEquals("by hand".getBytes(UTF_8), folder().read());
  }

  @Test
  void besideTheStateOnAFileSystem() throws IOException {
    conf.set(YarnConfiguration.FS_RM_STATE_STORE_URI, dir.resolve("rm").toUri().toString());
    keeps(beside(new FileSystemRMStateStore()));
    assertEquals("second", Files.readString(dir.resolve("rm/isonomy-mode.json")));
  }

  @Test
  void besideTheStateInZooKeeper() throws Exception {
    ServerCnxnFactory factory = new NIOServerCnxnFactory();
    factory.configure(new InetSocketAddress("127.0.0.1", 0), 10);
    factory.startup(new ZooKeeperServer(dir.toFile(), dir.toFile(), 500));
    conf.set("hadoop.zk.address", "127.0.0.1:" + factory.getLocalPort());
    conf.setInt("hadoop.zk.retry-interval-ms", 100);
    conf.set(YarnConfiguration.ZK_RM_STATE_STORE_PARENT_PATH, "/a/rmstore");
    ModeStore store = beside(new ZKRMStateStore());
    try {
      keeps(store);
      ZKCuratorManager look = new ZKCuratorManager(conf);
      look.start();
      assertEquals("second", look.getStringData("/a/rmstore/isonomy-mode"));
      look.delete("/a/rmstore/isonomy-mode");
      look.create("/a/rmstore/isonomy-mode");
      look.close();
      assertNull(store.read(), "made, and not yet filled");
    } finally {
      factory.shutdown();
    }
    assertTrue(assertThrows(IOException.class, store::read).getMessage().startsWith("ZooKeeper: "));
  }

  @Test
  void whereNothingSaysWhere() throws IOException {
    ModeSwitch switched = opened(beside(new NullRMStateStore()));
    assertEquals("off", applied.remove().name());
    String why = assertThrows(IOException.class, () -> switched.to("on", null, "ann")).getMessage();
    assertTrue(why.contains("nothing has changed") && why.contains(ModeStore.FOLDER), why);
    assertTrue(applied.isEmpty());
  }

  @Test
  void aMissingModeIsOffAndWhoSwitchesIsStored() throws IOException {
    ModeSwitch switched = opened(folder());
    assertFalse(applied.remove().isOn());
    assertFalse(Files.exists(dir.resolve("mode")), "nothing was switched");
    switched.to("on", List.of("root.a", "root.b.c"), "ann");
    switched.to("shadow", null, "bob");
    switched.to("on", null, "cec");
    opened(folder());
    Managed last = null;
    for (String by : List.of("ann", "bob", "cec", "cec")) {
      last = applied.remove();
      assertEquals(by, last.toJson().get("by").asText());
      assertTrue(last.toJson().get("at_ms").asLong() > 0);
    }
    for (String queue : List.of("root.a", "root.a.x", "root.b.c")) {
      assertTrue(last.has(queue), queue);
    }
    for (String queue : List.of("root", "root.ab", "root.b", "root.b.d")) {
      assertFalse(last.has(queue), queue);
    }
  }

  @Test
  void anUpgradeStoresWhatWasInForceOnce() throws IOException {
    conf.setBoolean(Managed.BYPASS, false);  // as the templates of 0.1 have it
    conf.set(Managed.QUEUES, "root.a");
    opened(folder());
    Managed upgraded = applied.remove();
    assertTrue(upgraded.places() && upgraded.has("root.a") && !upgraded.has("root.b"), upgraded.toString());
    conf.setBoolean(Managed.BYPASS, true);
    conf.set(Managed.QUEUES, "root.b");
    opened(folder());
    assertEquals(upgraded.toJson(), applied.remove().toJson(), "the keys are read once");

    Configuration other = new Configuration(false);
    other.setBoolean(Managed.BYPASS, true);
    assertEquals("off", Managed.before(other).name());
    other.set(Managed.MODE, "Shadow");
    assertTrue(Managed.before(other).isShadow());
    assertEquals("off", Managed.before(new Configuration(false)).name());
  }

  @Test
  void whatCannotBeReadPlacesNothingUntilItCan() throws Exception {
    Path file = dir.resolve("mode/isonomy-mode.json");
    for (String wrong : List.of("", "{", "7", "{\"mode\": \"on\"}",
        "{\"mode\": \"dark\", \"queues\": [], \"by\": \"\", \"at_ms\": 1}",
        "{\"mode\": \"on\", \"queues\": \"root.a\", \"by\": \"\", \"at_ms\": 1}",
        "{\"mode\": \"on\", \"queues\": [\"a\"], \"by\": \"\", \"at_ms\": 1}")) {
      ModeStore store = folder();
      store.write(wrong.getBytes(UTF_8));
      ModeSwitch switched = opened(store);
      Managed found = applied.remove();
      assertEquals("unreadable", found.name(), wrong);
      assertTrue(found.problem().contains(file.toString()), found.problem());
      assertTrue(found.has("root.any") && found.isOn() && !found.places() && !found.isShadow());
      switched.close();
    }
    conf.set(Managed.MODE, "dark");
    Files.delete(file);
    ModeSwitch switched = opened(folder());
    assertEquals("yarn-site.xml: " + Managed.MODE + ": must be on, shadow or off (got dark)",
        applied.remove().problem());
    Files.writeString(file, "{\"mode\":\"shadow\",\"by\":\"ann\",\"at_ms\":1,\"queues\":[]}");
    assertTrue(applied.poll(30, TimeUnit.SECONDS).isShadow(), "it is read again");
    switched.close();
  }

  @Test
  void whatCannotBeInForceIsRefusedAndAtTheStartPlacesNothing() throws IOException {
    ModeSwitch switched = new ModeSwitch(folder(), conf, wanted -> wanted.isOn() ? "there is no key" : "", applied::add);
    switched.open();
    applied.remove();
    String why = assertThrows(IllegalArgumentException.class, () -> switched.to("on", null, "ann")).getMessage();
    assertEquals("on: there is no key", why);
    assertNull(folder().read());
    folder().write(Managed.of("on", List.of(), "ann", 1).stored());
    switched.close();
    ModeSwitch again = new ModeSwitch(folder(), conf, wanted -> wanted.isOn() ? "there is no key" : "", applied::add);
    again.open();
    assertEquals("it is on, but there is no key", applied.remove().problem());
    again.close();
  }

  @Test
  void anAppWhoseAsksCannotBeGivenBackKeepsNoOtherFromGettingIts() throws IOException {
    Scheduler scheduler = switchedOn();
    List<FiCaSchedulerApp> apps = new ArrayList<>();
    for (int i = 1; i <= 9; i++) {
      FiCaSchedulerApp app = scheduler.app(i);
      ApplicationAttemptId id = app.getApplicationAttemptId();
      scheduler.asks.open(id, scheduler.pendingOf(id));
      scheduler.asks.ask(id, List.of(gpu()), List.of(), Map.of());
      apps.add(app);
    }
    when(apps.get(4).updateResourceRequests(any())).thenThrow(new SchedulerInvalidResourceRequestException("as of a key"
        + " under which it also asks by the constraint API (test)"));
    Bridge before = scheduler.bridge;
    scheduler.modeSwitch.to("off", null, "ann");
    for (FiCaSchedulerApp app : apps) {
      verify(app).updateResourceRequests(List.of(gpu()));
    }
    assertTrue(scheduler.asks.all().isEmpty());
    assertTrue(scheduler.bridge != null && scheduler.bridge != before, "the control plane is told of mode off");
    scheduler.bridge.close();
  }

  @Test
  void anAskDuringASwitchGoesToWhoServesItThen() throws IOException {
    Scheduler scheduler = switchedOn();
    FiCaSchedulerApp app = scheduler.app(1);
    scheduler.whileAsking = () -> scheduler.modeSwitch.to("off", null, "ann");
    ask(scheduler, app);
    verify(app).updateResourceRequests(List.of(gpu()));
    scheduler.bridge.close();
  }

  @Test
  void aMasterThatNeedsGpusItselfIsAskedForBeforeItsAttemptIsPublished() throws IOException {
    Scheduler scheduler = switchedOn();
    FiCaSchedulerApp app = scheduler.app(1);
    when(app.isWaitingForAMContainer()).thenReturn(true);
    ask(scheduler, app);
    verify(app, never()).updateResourceRequests(List.of(gpu()));
    assertEquals(1, scheduler.asks.all().size());
    Ask ask = scheduler.asks.all().get(0);
    assertTrue(scheduler.told(ask).getMaster());
    when(app.isWaitingForAMContainer()).thenReturn(false);
    assertFalse(scheduler.told(ask).getMaster());
    scheduler.bridge.close();
  }

  @Test
  void whoStandsByPutsNoModeInForce() throws IOException {
    ModeStore store = mock(ModeStore.class);
    ModeSwitch switched = opened(store);
    applied.remove();
    doAnswer(call -> {
      switched.close();
      return null;
    }).when(store).write(any());
    switched.to("shadow", null, "ann");
    assertTrue(applied.isEmpty(), "it stood by meanwhile");
  }

  @Test
  void aStoppedSchedulerStartsNoBridge() {
    Scheduler scheduler = new Scheduler();
    scheduler.whileLinking = () -> ServiceOperations.stopQuietly(scheduler);
    scheduler.openMode();
    assertNull(scheduler.bridge);
  }
}
