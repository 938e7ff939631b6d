package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.util.List;
import org.apache.hadoop.ha.HAServiceProtocol.HAServiceState;
import org.apache.hadoop.test.GenericTestUtils;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.RMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.ZKRMStateStore;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Two ResourceManagers that ZooKeeper elects, with one mode. */
@Timeout(180)
class ModePairTest {
  @TempDir
  Path dir;

  private final ServerCnxnFactory zookeeper = new NIOServerCnxnFactory();
  private final MiniYARNCluster pair = new MiniYARNCluster("pair", 2, 0, 1, 1);

  @BeforeEach
  void start() throws Exception {
    zookeeper.configure(new InetSocketAddress("127.0.0.1", 0), 100);
    zookeeper.startup(new ZooKeeperServer(dir.toFile(), dir.toFile(), 500));
    MiniYarn.control = new ScriptedControlPlane();
    YarnConfiguration c = new YarnConfiguration();
    c.setClass(YarnConfiguration.RM_SCHEDULER, MiniYarn.TestScheduler.class, IsonomyScheduler.class);
    c.set("isonomy.bridge.token-file", "unused");
    c.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    c.setBoolean(YarnConfiguration.RECOVERY_ENABLED, true);
    c.setClass(YarnConfiguration.RM_STORE, ZKRMStateStore.class, RMStateStore.class);
    c.set(YarnConfiguration.RM_ZK_ADDRESS, "127.0.0.1:" + zookeeper.getLocalPort());
    c.setInt("hadoop.zk.timeout-ms", 4000);
    c.set(YarnConfiguration.RM_CLUSTER_ID, "pair");
    c.set(YarnConfiguration.RM_HA_IDS, "rm0,rm1");
    c.set(YarnConfiguration.FS_NODE_ATTRIBUTE_STORE_ROOT_DIR, dir.resolve("attributes").toUri().toString());
    pair.init(c);
    pair.start();
  }

  @AfterEach
  void stop() {
    pair.stop();
    zookeeper.shutdown();
  }

  private IsonomyScheduler scheduler(int index) {
    return (IsonomyScheduler) pair.getResourceManager(index).getResourceScheduler();
  }

  private void awaitMode(int index) throws Exception {
    ResourceManager rm = pair.getResourceManager(index);
    GenericTestUtils.waitFor(() -> rm.getRMContext().getHAServiceState() == HAServiceState.ACTIVE
        && scheduler(index).modeSwitch != null && scheduler(index).bridge != null, 100, 120_000);
  }

  @Test
  void theOtherOneReadsTheModeWhenItBecomesActive() throws Exception {
    GenericTestUtils.waitFor(() -> pair.getActiveRMIndex() >= 0, 100, 120_000);
    int first = pair.getActiveRMIndex();
    awaitMode(first);
    assertFalse(scheduler(first).managed.isOn(), "nobody has switched it on");
    Managed on = scheduler(first).modeSwitch.to("on", List.of("root.default"), "ann");
    assertEquals("ZooKeeper's /rmstore/isonomy-mode", scheduler(first).modeSwitch.place());
    pair.getResourceManager(first).stop();
    awaitMode(1 - first);
    assertEquals(on.toJson(), scheduler(1 - first).managed.toJson());
    assertTrue(scheduler(1 - first).managed.places());
  }
}
