package isonomy.nm;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.verify;
import static org.mockito.Mockito.when;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.nodemanager.ContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerDiagnosticsUpdateEvent;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ResourceMappings;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.resourceplugin.gpu.GpuDevice;
import org.apache.hadoop.yarn.server.nodemanager.executor.ContainerSignalContext;
import org.apache.hadoop.yarn.server.nodemanager.executor.ContainerStartContext;
import org.apache.hadoop.yarn.server.nodemanager.recovery.NMNullStateStoreService;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.mockito.ArgumentCaptor;

/** Which GPUs a container sees, and until when they are its own. */
@Timeout(60)
class GpuLaunchesTest {
  @TempDir
  Path dir;

  private final ConcurrentHashMap<ContainerId, Container> containers = new ConcurrentHashMap<>();
  private final List<String> killed = new ArrayList<>();
  private String leader;
  private boolean deaf;
  private GpuLaunches gpus;

  private final Configuration conf = new Configuration(false);

  @BeforeEach
  void start() throws IOException {
    Context nm = mock(Context.class);
    when(nm.getContainers()).thenReturn(containers);
    when(nm.getNMStateStore()).thenReturn(new NMNullStateStoreService());
    conf.set(GpuLaunches.EVIDENCE_FILE, dir.resolve("evidence.jsonl").toString());
    conf.setLong(YarnConfiguration.NM_SLEEP_DELAY_BEFORE_SIGKILL_MS, -4_900);
    conf.setLong(GpuLaunches.GPU_WAIT_MS, 200);
    ContainerExecutor executor = mock(ContainerExecutor.class);
    when(executor.getProcessId(any())).thenAnswer(call -> leader);
    when(executor.signalContainer(any())).thenAnswer(call -> {
      ContainerSignalContext signal = call.getArgument(0);
      assertEquals(ContainerExecutor.Signal.KILL, signal.getSignal());
      killed.add(signal.getPid());
      if (!deaf) {
        new ProcessBuilder("bash", "-c", "kill -9 -- -" + signal.getPid()).start();
      }
      return true;
    });
    gpus = new GpuLaunches(nm, conf, executor);
    when(nm.getNodeId()).thenReturn(NodeId.newInstance("n1", 8041));  // YARN names it later, too
  }

  private Container container(int number, int gpuCount, ExecutionType type, String... tags) {
    ContainerTokenIdentifier token = Tokens.token(number, gpuCount, type, tags);
    Container container = mock(Container.class);
    when(container.getContainerId()).thenReturn(token.getContainerID());
    when(container.getContainerTokenIdentifier()).thenReturn(token);
    when(container.getResourceMappings()).thenReturn(new ResourceMappings());
    containers.put(token.getContainerID(), container);
    return container;
  }

  /** The environment that the container gets whose master wrote another. */
  private Map<String, String> environment(Container container) throws IOException {
    Map<String, String> environment = new HashMap<>(Map.of(
        GpuLaunches.VISIBLE, "0,1,2,3,4,5,6,7", "CONTAINER_ID",
        container == null ? "container_9_0001_01_000009" : container.getContainerId().toString()));
    LinkedHashSet<String> nmVars = new LinkedHashSet<>();
    gpus.visible(environment, nmVars);
    assertEquals(nmVars.contains(GpuLaunches.VISIBLE), !"0,1,2,3,4,5,6,7".equals(environment.get(GpuLaunches.VISIBLE)));
    return environment;
  }

  private List<String> evidence() throws IOException {
    return Files.readAllLines(dir.resolve("evidence.jsonl"));
  }

  @Test
  void aContainerSeesTheGpusOfItsTokenWhateverItsMasterWrote() throws IOException {
    ExecutionType guaranteed = ExecutionType.GUARANTEED;
    Map<String, String> leased = environment(container(1, 2, guaranteed, "gpu=0,2;lease=r1.2"));
    assertEquals("0,2", leased.get(GpuLaunches.VISIBLE));
    assertEquals("r1.2", leased.get(GpuLaunches.LEASE));
    assertEquals("PCI_BUS_ID", leased.get(GpuLaunches.ORDER), "as nvidia-smi and bad-gpus count");
    assertEquals("0,2", environment(container(1, 2, guaranteed, "gpu=0,2", "lease=r1.2")).get(GpuLaunches.VISIBLE));
    assertEquals("", environment(container(2, 0, guaranteed)).get(GpuLaunches.VISIBLE));
    assertEquals("", environment(null).get(GpuLaunches.VISIBLE), "unknown to the NodeManager");
  }

  @Test
  void tagsThatDoNotFitTheResourceShowNothing() throws IOException {
    ExecutionType guaranteed = ExecutionType.GUARANTEED;
    assertEquals("", environment(container(1, 0, guaranteed, "gpu=0,1,2,3", "lease=x")).get(GpuLaunches.VISIBLE));
    assertEquals("", environment(container(2, 1, guaranteed, "gpu=0,1,2,3;lease=x")).get(GpuLaunches.VISIBLE));
    assertEquals("", environment(container(3, 1, guaranteed, "gpu=0", "gpu=1")).get(GpuLaunches.VISIBLE));
  }

  /** There are four GPUs. */
  @Test
  void aContainerWithoutTagsGetsGpusThatNoOtherHas() throws Exception {
    Container leased = container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a");
    Container plain = container(2, 2, ExecutionType.GUARANTEED);
    Map<String, String> environment = environment(plain);
    assertEquals("1,2", environment.get(GpuLaunches.VISIBLE));
    assertEquals("", environment.get(GpuLaunches.LEASE));
    assertEquals("1,2", environment(plain).get(GpuLaunches.VISIBLE), "the same at a second launch");
    assertEquals("3", environment(leased).get(GpuLaunches.VISIBLE));
    assertEquals("", environment(container(3, 1, ExecutionType.OPPORTUNISTIC)).get(GpuLaunches.VISIBLE));
    assertEquals("0", environment(container(4, 1, ExecutionType.GUARANTEED)).get(GpuLaunches.VISIBLE));
    assertEquals(Map.of(0, Tokens.id(4).toString(), 1, Tokens.id(2).toString(), 2, Tokens.id(2).toString()),
        GpuLaunches.of(conf).allotted(), "what the ResourceManager hears");
    assertEquals(5, gpus.launch(plain, () -> 5));
    assertTrue(evidence().get(0).contains("\"gpu_ids\":[1,2],\"lease\":\"\""), evidence().toString());
    when(plain.isContainerInFinalStates()).thenReturn(true);
    assertEquals("2", environment(container(5, 1, ExecutionType.GUARANTEED)).get(GpuLaunches.VISIBLE));
  }

  @Test
  void whoFindsNoFreeGpuDoesNotStart() throws Exception {
    container(1, 3, ExecutionType.GUARANTEED, "gpu=0,1,2;lease=a");
    Container late = container(2, 2, ExecutionType.GUARANTEED);
    assertEquals("", environment(late).get(GpuLaunches.VISIBLE));
    assertEquals(GpuLaunches.NOT_STARTED, gpus.launch(late, () -> 0));
    verify(late).handle(ArgumentCaptor.forClass(ContainerDiagnosticsUpdateEvent.class).capture());
    assertTrue(evidence().isEmpty());
  }

  /** As after a restart of the NodeManager; YARN's plugin for GPUs writes its assignments to the same place. */
  @Test
  void whatTheNodeManagerRecoveredCounts() throws Exception {
    Container old = container(1, 1, ExecutionType.GUARANTEED);
    new NMNullStateStoreService().storeAssignedResources(old, "yarn.io/gpu", List.of(new GpuDevice(3, 3)));
    assertEquals("2", environment(container(2, 1, ExecutionType.GUARANTEED)).get(GpuLaunches.VISIBLE));
    assertEquals(Tokens.id(1).toString(), GpuLaunches.of(conf).allotted().get(3));
    assertEquals(0, gpus.reacquire(old.getContainerId(), () -> {
      Container leased = container(3, 1, ExecutionType.GUARANTEED, "gpu=3", "lease=b");
      assertEquals(GpuLaunches.NOT_STARTED, assertDoesNotThrow(() -> gpus.launch(leased, () -> 0)));
      return 0;
    }));
  }

  @Test
  void theGpusAreFreeWhenTheLastProcessIsGone() throws Exception {
    Container first = container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a");
    Process shell = session("trap '' TERM; sleep 100 & echo $$; wait");
    assertEquals(0, gpus.launch(first, () -> 0));
    assertEquals(List.of(leader), killed, "who stays longer than YARN's kill takes is killed");
    assertFalse(shell.isAlive());
    assertTrue(evidence().get(0).startsWith("{\"event\":\"start\",\"container\":\"" + first.getContainerId()));
    assertTrue(evidence().get(1).startsWith("{\"event\":\"end\",\"container\":\"" + first.getContainerId()));
    assertEquals(0, gpus.launch(container(2, 1, ExecutionType.GUARANTEED, "gpu=3;lease=b"), () -> 0));
  }

  @Test
  void aContainerThatIsLaunchedAgainWaitsForItsGpusToo() throws Exception {
    IsonomyLinuxContainerExecutor executor = new IsonomyLinuxContainerExecutor();
    executor.gpus = gpus;
    ContainerStartContext again = new ContainerStartContext.Builder().setLocalizedResources(Map.of())
        .setLocalDirs(List.of()).setLogDirs(List.of()).setFilecacheDirs(List.of()).setUserLocalDirs(List.of())
        .setContainerLocalDirs(List.of()).setContainerLogDirs(List.of()).setUserFilecacheDirs(List.of())
        .setApplicationLocalDirs(List.of())
        .setContainer(container(2, 1, ExecutionType.GUARANTEED, "gpu=3;lease=b")).build();
    int exitCode = gpus.launch(container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a"),
        () -> executor.relaunchContainer(again));
    assertEquals(GpuLaunches.NOT_STARTED, exitCode);
  }

  /** YARN interrupts who waits for a container, and reacquires it when the NodeManager starts again. */
  @Test
  void aContainerRunsOnWhenItsNodeManagerStops() throws Exception {
    Container first = container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a");
    Process shell = session("echo $$; exec sleep 100");
    ContainerId id = first.getContainerId();
    assertThrows(InterruptedException.class, () -> gpus.reacquire(id, () -> {
      throw new InterruptedException("test");
    }));
    assertThrows(InterruptedIOException.class, () -> gpus.reacquire(id, () -> {
      throw new InterruptedIOException("test");
    }));
    ContainerId waits = container(2, 1, ExecutionType.GUARANTEED, "gpu=3;lease=b").getContainerId();
    Thread.currentThread().interrupt();
    assertThrows(InterruptedIOException.class, () -> gpus.reacquire(waits, () -> 0), "else YARN takes it for lost");
    assertTrue(Thread.interrupted());
    assertTrue(shell.isAlive() && killed.isEmpty());
    assertTrue(evidence().isEmpty(), "it has not ended");
    shell.destroyForcibly();
  }

  @Test
  void whoLeavesTheSessionDoesNotKeepItsGpus() throws Exception {
    Container first = container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a");
    String id = first.getContainerId().toString();
    ProcessBuilder escape = new ProcessBuilder("setsid", "bash", "-c", "sleep 100 >/dev/null &");
    escape.environment().put("CONTAINER_ID", id);
    escape.start().waitFor();
    leader = "4194999";
    assertEquals(1, Session.groups(leader, id).size());
    assertTrue(Session.groups(leader, "no container").isEmpty(), "it is of no session that the container leads");
    assertEquals(0, gpus.launch(first, () -> 0));
    assertEquals(1, killed.size());
    assertTrue(Session.groups(leader, id).isEmpty());
    assertEquals(2, evidence().size());
  }

  @Test
  void whoLeavesTheSessionAsAnotherUserIsFoundInTheContainersCgroup(@TempDir Path process) throws Exception {
    Files.writeString(process.resolve("cgroup"), "5:devices:/hadoop-yarn/container_1_0001_01_000002\n0::/\n");
    assertTrue(Session.isOf(process, "container_1_0001_01_000002"));
    assertFalse(Session.isOf(process, "container_1_0001_01_00000"));
    assertFalse(Session.isOf(process, "container_1_0001_01_000003"));
  }

  @Test
  void whoCannotBeKilledKeepsItsGpus() throws Exception {
    deaf = true;
    Container first = container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a");
    Process shell = session("echo $$; exec sleep 100");
    assertEquals(7, gpus.launch(first, () -> 7));
    assertEquals(1, evidence().size(), "no end");
    Container second = container(2, 1, ExecutionType.GUARANTEED, "gpu=3;lease=b");
    assertEquals(GpuLaunches.NOT_STARTED, gpus.launch(second, () -> 0), "not -1, which would count against its job");
    ArgumentCaptor<ContainerDiagnosticsUpdateEvent> said = ArgumentCaptor.forClass(ContainerDiagnosticsUpdateEvent.class);
    verify(second).handle(said.capture());
    assertTrue(said.getValue().getDiagnosticsUpdate().contains("still held by " + first.getContainerId()));
    shell.destroyForcibly().waitFor();
    leader = null;
    assertEquals(0, gpus.launch(second, () -> 0));
    assertTrue(evidence().get(1).contains("\"exit\":7"), evidence().toString());
  }

  @Test
  void evidenceIsJsonAndMayBeRotated() throws Exception {
    Evidence evidence = new Evidence(dir.resolve("evidence.jsonl"), () -> "a\"\n{");
    evidence.started(Tokens.use(1, 2, "gpu=0,2;lease=r1.2"));
    Files.move(dir.resolve("evidence.jsonl"), dir.resolve("evidence.jsonl.1"));
    evidence.ended(Tokens.use(1, 2, "gpu=0,2;lease=r1.2"), 143);
    String line = evidence().get(0).replaceAll("\"time_ms\":\\d+", "\"time_ms\":1");
    assertEquals("{\"event\":\"end\",\"container\":\"" + Tokens.id(1) + "\",\"node\":\"a\\\"\\n{\",\"gpu_ids\":[0,2],"
        + "\"lease\":\"r1.2\",\"time_ms\":1,\"exit\":143}", line);
    assertEquals(1, Files.readAllLines(dir.resolve("evidence.jsonl.1")).size());
  }

  @Test
  void evidenceNamesTheNodeAsYarnDoesWhateverItsConfiguredAddress() throws Exception {
    gpus.launch(container(1, 1, ExecutionType.GUARANTEED, "gpu=3;lease=a"), () -> 0);
    assertTrue(evidence().get(0).contains("\"node\":\"n1\""), evidence().toString());
  }

  @Test
  void whereNoEvidenceCanBeWrittenTheNodeManagerStarts() throws Exception {
    Path beneath = Files.createFile(dir.resolve("file")).resolve("evidence.jsonl");
    Evidence evidence = assertDoesNotThrow(() -> new Evidence(beneath, () -> "n1"));
    assertDoesNotThrow(() -> evidence.started(Tokens.use(1, 2, "gpu=0;lease=r1.2")));
  }

  /** Starts a script that leads a session of its own and prints its process id. */
  private Process session(String script) throws IOException {
    Process process = new ProcessBuilder("setsid", "bash", "-c", script).start();
    leader = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
    assertTrue(groups().contains(leader));
    return process;
  }

  private Set<String> groups() {
    return Session.groups(leader, "no container");
  }

  @Test
  void whereProcHidesTheProcessesOfOthersItIsKnown() {
    assertTrue(Session.seesOthers(Session.PROC));
    assertFalse(Session.seesOthers(dir));
  }

  @Test
  void aSessionIsItsProcesses() throws Exception {
    assertTrue(Session.groups("4194999", "no container").isEmpty());
    Process shell = session("set -m; sleep 100 & echo $$; wait");
    assertEquals(2, groups().size(), "a job of its own process group");
    new ProcessBuilder("bash", "-c", "kill -9 -- -" + String.join(" -", groups())).start().waitFor();
    shell.waitFor();
    for (int i = 0; i < 100 && !groups().isEmpty(); i++) {
      Thread.sleep(20);
    }
    assertTrue(groups().isEmpty());
  }
}
