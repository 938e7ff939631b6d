package isonomy.nm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.Mockito.mock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Which GPUs a container may not open. */
@SuppressWarnings("deprecation")
class GpuDevicesTest {
  private static final Resource ANY = Resource.newInstance(1, 1);

  @TempDir
  Path mount;

  private final Map<ContainerId, GpuUse> uses = new HashMap<>();
  private final List<List<String>> called = new ArrayList<>();
  private final Configuration conf = new Configuration(false);
  private final GpuDevices devices = new GpuDevices();
  private Path cgroups;
  private boolean broken;

  @BeforeEach
  void start() throws IOException {
    cgroups = Files.createDirectories(mount.resolve("devices/hadoop-yarn"));
    conf.set(YarnConfiguration.NM_LINUX_CONTAINER_CGROUPS_MOUNT_PATH, mount.toString());
    conf.set(GpuDevices.MINORS, "0, 1, 3, 2");
    init();
  }

  private void init() throws IOException {
    devices.setConf(conf);
    devices.init(uses::get, arguments -> {
      called.add(List.of(arguments));
      if (broken) {
        throw new IOException("refused");
      }
    });
  }

  private ContainerId started(int number, GpuUse use) throws IOException {
    ContainerId id = Tokens.id(number);
    uses.put(id, use);
    devices.preExecute(id, ANY);
    return id;
  }

  @Test
  void aContainerIsDeniedTheGpusOfOthersByTheirMinorNumbers() throws IOException {
    ContainerId id = started(1, Tokens.use(1, 2, "gpu=0,2;lease=a"));
    assertEquals(List.of(List.of(cgroups.resolve(id.toString()).toString(), "195:1", "195:2")), called);
    assertEquals("cgroups=" + cgroups.resolve(id.toString()).resolve("tasks"), devices.getResourcesOption(id));
    assertTrue(Files.isDirectory(cgroups.resolve(id.toString())));
    devices.postExecute(id);
    assertFalse(Files.exists(cgroups.resolve(id.toString())));
    assertEquals("cgroups=none", devices.getResourcesOption(id));
  }

  @Test
  void withoutTheKeyTheMinorNumbersAreTheIdsOfTheMachinesGpus() throws IOException {
    conf.unset(GpuDevices.MINORS);
    init();
    ContainerId id = started(1, Tokens.use(1, 2, "gpu=0,2;lease=a"));
    assertEquals("195:1", denied(0).get(0));
    devices.postExecute(id);
  }

  @Test
  void aContainerWithoutGpusIsDeniedAllAndOneWithAllNone() throws IOException {
    started(1, Tokens.use(1, 0));
    started(2, null);
    ContainerId all = started(3, Tokens.use(3, 4, "gpu=0,1,2,3;lease=a"));
    List<String> every = List.of("195:0", "195:1", "195:2", "195:3");
    assertEquals(List.of(every, every), List.of(denied(0), denied(1)));
    assertEquals(2, called.size());
    assertEquals("cgroups=" + cgroups.resolve(all.toString()).resolve("tasks"), devices.getResourcesOption(all));
    devices.postExecute(all);
  }

  private List<String> denied(int call) {
    return called.get(call).subList(1, called.get(call).size());
  }

  @Test
  void inCgroupV2TheOneHierarchyHasTheContainers() throws IOException {
    Path own = Files.createDirectories(mount.resolve("hadoop-yarn"));
    Files.createFile(mount.resolve("cgroup.controllers"));
    init();
    ContainerId id = started(1, Tokens.use(1, 2, "gpu=0,2;lease=a"));
    assertEquals(List.of(List.of(own.resolve(id.toString()).toString(), "195:1", "195:2")), called);
    assertEquals("cgroups=" + own.resolve(id.toString()).resolve("cgroup.procs"), devices.getResourcesOption(id));
    devices.postExecute(id);
    assertFalse(Files.exists(own.resolve(id.toString())));
  }

  @Test
  void aContainerWithoutTagsIsDeniedTheGpusThatItWasNotAllotted() throws IOException {
    started(1, GpuUse.of(Tokens.token(1, 2, ExecutionType.GUARANTEED), List.of(1, 3)));
    assertEquals(List.of("195:0", "195:3"), denied(0));
  }

  @Test
  void whomYarnsOwnPluginGivesGpusIsNotOursToConfine() throws IOException {
    ContainerId id = started(1, GpuUse.of(Tokens.token(1, 2, ExecutionType.GUARANTEED), List.of()));
    assertEquals(List.of(), called);
    assertEquals("cgroups=none", devices.getResourcesOption(id));
  }

  @Test
  void aContainerThatCannotBeConfinedDoesNotStart() {
    broken = true;
    String why = assertThrows(IOException.class, () -> started(1, Tokens.use(1, 1, "gpu=1;lease=a"))).getMessage();
    assertTrue(why.contains("GPUs [0, 2, 3] cannot be denied"), why);
    assertFalse(Files.exists(cgroups.resolve(Tokens.id(1).toString())));
    broken = false;
    conf.set(GpuDevices.MINORS, "0");
    assertThrows(IOException.class, () -> {
      init();
      started(2, Tokens.use(2, 1, "gpu=1;lease=a"));
    });
  }

  @Test
  void aCgroupWithProcessesIsLeftUntilAContainerStartsAfterTheirEnd() throws IOException {
    ContainerId id = started(1, Tokens.use(1, 0));
    Path process = Files.createFile(cgroups.resolve(id.toString()).resolve("tasks"));
    devices.postExecute(id);
    started(2, Tokens.use(2, 0));
    assertTrue(Files.exists(cgroups.resolve(id.toString())));
    Files.delete(process);
    started(3, Tokens.use(3, 0));
    assertFalse(Files.exists(cgroups.resolve(id.toString())));
  }

  @Test
  void whatIsNotConfiguredIsSaidAtTheStart() throws IOException {
    for (String minors : List.of("a", "0,0", "-1")) {
      conf.set(GpuDevices.MINORS, minors);
      assertTrue(assertThrows(IOException.class, this::init).getMessage().startsWith(GpuDevices.MINORS));
    }
    conf.set(GpuDevices.MINORS, "0");
    Files.delete(cgroups);
    assertTrue(assertThrows(IOException.class, this::init).getMessage().contains("is no cgroup"));
    assertThrows(IOException.class, () -> devices.init(mock(LinuxContainerExecutor.class)));
  }
}
