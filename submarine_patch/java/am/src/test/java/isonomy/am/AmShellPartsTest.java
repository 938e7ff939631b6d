package isonomy.am;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.Mockito.doThrow;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.never;
import static org.mockito.Mockito.timeout;
import static org.mockito.Mockito.verify;
import static org.mockito.Mockito.when;

import isonomy.wire.v1.AmAsk;
import isonomy.wire.v1.AmCommand;
import isonomy.wire.v1.AmContainer;
import isonomy.wire.v1.AmEvent;
import isonomy.wire.v1.AmEvents;
import isonomy.wire.v1.AmFinish;
import isonomy.wire.v1.AmLaunch;
import isonomy.wire.v1.AmProgress;
import isonomy.wire.v1.AmReply;
import isonomy.wire.v1.AmResource;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;
import org.apache.hadoop.yarn.security.AMRMTokenIdentifier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The AM shell's parts without a YARN: its event queue, the commands of its Agent, tags, and the Agent's first line. */
class AmShellPartsTest {
  @Test
  void theAgentsFirstLineIsJsonWhateverIsInIt() throws Exception {
    ApplicationAttemptId attempt = ApplicationAttemptId.newInstance(ApplicationId.newInstance(1, 7), 2);
    assertEquals("{\"port\":80,\"token\":\"a\\\"b\",\"app_id\":\"application_1_0007\",\"attempt\":2}",
        AmShell.greeting(80, "a\"b", attempt));
  }

  @Test
  void whatTheAttemptsNeededIsDeletedAndWhatTheUserKeepsStays(@TempDir java.nio.file.Path dir) throws Exception {
    for (String name : List.of("isonomy-am.jar", "files/train.py", "agent/1-2.json", "checkpoints/job000/ckpt-1")) {
      Files.createDirectories(dir.resolve(name).getParent());
      Files.writeString(dir.resolve(name), "x");
    }
    java.nio.file.Path spec = Files.writeString(dir.resolve("isonomy-app.json"),
        "{\"worker\":{\"staging\":\"no\"},\"staging\":\"" + dir.toUri() + "\"}");
    Configuration conf = new Configuration();
    org.apache.hadoop.fs.Path staging = new org.apache.hadoop.fs.Path(AmShell.staging(spec.toFile()));
    AmShell.clear(staging, conf);
    assertEquals(List.of("checkpoints"), List.of(dir.toFile().list()));
    staging.getFileSystem(conf).delete(new org.apache.hadoop.fs.Path(staging, "checkpoints"), true);
    AmShell.clear(staging, conf);
    assertFalse(Files.exists(dir), "nothing was kept in it");
  }

  @Test
  void pollGivesWhatWaitsAndIsBounded() throws Exception {
    List<String> stuck = new ArrayList<>();
    EventQueue events = new EventQueue(2, 1, stuck::add);
    assertEquals(0, events.take(0).getEventsCount());
    for (String id : List.of("a", "b", "c")) {
      events.add(AmEvent.newBuilder().setStarted(id).build());
    }
    assertEquals(1, stuck.size());
    AmEvents batch = AmEvents.parseFrom(events.take(1000).toByteArray());
    assertEquals(List.of("a", "b"), batch.getEventsList().stream().map(AmEvent::getStarted).toList());
  }

  @Test
  void aRepeatedCommandHasItsEffectOnce() throws Exception {
    Containers containers = new Containers(null, null);
    List<Outcome> outcomes = new ArrayList<>();
    AgentApi api = new AgentApi(new EventQueue(1, 1, why -> { }), containers, outcomes::add, port -> { });
    api.call(AmCommand.newBuilder().setId("p1").setProgress(AmProgress.newBuilder().setFraction(1.5f)).build()
        .toByteArray());
    assertEquals(1f, containers.getProgress());
    AmReply refused = AmReply.parseFrom(api.call(AmCommand.newBuilder().setId("x").build().toByteArray()));
    assertFalse(refused.getOk());
    assertEquals("a command without a kind", refused.getError());
    byte[] finish = AmCommand.newBuilder().setId("f").setFinish(AmFinish.newBuilder().setMessage("bad data")).build()
        .toByteArray();
    assertTrue(AmReply.parseFrom(api.call(finish)).getOk());
    assertTrue(AmReply.parseFrom(api.call(finish)).getOk());
    assertEquals(1, outcomes.size());
    assertEquals(FinalApplicationStatus.FAILED, outcomes.get(0).status);
    assertEquals("bad data", outcomes.get(0).message);
  }

  @Test
  void aLaunchOfAnUnknownContainerIsAnError() throws Exception {
    AgentApi api = new AgentApi(new EventQueue(1, 1, why -> { }), new Containers(null, null), o -> { },
        port -> { });
    AmReply reply = AmReply.parseFrom(api.call(AmCommand.newBuilder().setId("1")
        .setLaunch(AmLaunch.newBuilder().setContainerId("container_1")).build().toByteArray()));
    assertEquals("container_1 is not held", reply.getError());
  }

  @ParameterizedTest
  @ValueSource(strings = {"echo plain", "printf '%s' \"two words\"", "X=5; echo \"$X `echo y` \\$X\"",
      "python3 -c 'print(\"a\" + \"\\\\\")'", "echo '{{x}} {\"a\": {\"b\": {}}} \\}}'"})
  void theOuterShellLeavesTheCommandAlone(String command) throws Exception {
    String direct = shell(command);
    assertEquals(direct, shell("exec /bin/bash -c \"" + expanded(WorkerLaunch.inDoubleQuotes(command)) + "\""));
  }

  @Test
  void aValueOfTheEnvironmentKeepsItsBraces() throws Exception {
    String value = "{{x}} {\"a\": {\"b\": {}}} \\}}";
    AmLaunch launch = AmLaunch.newBuilder().putEnv("DS_CONFIG", value).build();
    String told = new WorkerLaunch(new Configuration(false), new Credentials()).context(launch).getEnvironment()
        .get("DS_CONFIG");
    assertEquals(value, shell("export DS_CONFIG=\"" + expanded(told) + "\"; printf %s \"$DS_CONFIG\""));
  }

  @Test
  void aRelaunchTakesAFileThatWasUploadedAgainAsItIsNow(@TempDir java.nio.file.Path dir) throws Exception {
    java.nio.file.Path file = dir.resolve("train.py");
    AmLaunch launch = AmLaunch.newBuilder()
        .addResources(AmResource.newBuilder().setName("train.py").setUri(file.toUri().toString())).build();
    WorkerLaunch launches = new WorkerLaunch(new Configuration(false), new Credentials());
    for (String text : List.of("v1", "v2, longer")) {
      Files.writeString(file, text);
      assertEquals(text.length(), launches.context(launch).getLocalResources().get("train.py").getSize());
    }
  }

  /** As the NodeManager expands commands and values (ContainerLaunch.expandEnvironment). */
  private static String expanded(String text) {
    return text.replace("{{", "$").replace("}}", "");
  }

  private static String shell(String script) throws Exception {
    Process process = new ProcessBuilder("/bin/bash", "-c", script).redirectErrorStream(true).start();
    String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertEquals(0, process.waitFor(), output);
    return output;
  }

  @Test
  void workersGetAllCredentialsButTheMasters() {
    Credentials own = new Credentials();
    own.addSecretKey(new Text("isonomy.token"), new byte[] {1});
    own.addToken(new Text("hdfs"), token("HDFS_DELEGATION_TOKEN"));
    own.addToken(new Text("am"), token(AMRMTokenIdentifier.KIND_NAME.toString()));
    Credentials kept = WorkerLaunch.withoutMasterToken(own);
    assertNotNull(kept.getSecretKey(new Text("isonomy.token")));
    assertNotNull(kept.getToken(new Text("hdfs")));
    assertNull(kept.getToken(new Text("am")));
  }

  private static Token<AMRMTokenIdentifier> token(String kind) {
    return new Token<>(new byte[0], new byte[0], new Text(kind), new Text("service"));
  }

  private static Container container() {
    return Container.newInstance(
        ContainerId.newContainerId(ApplicationAttemptId.newInstance(ApplicationId.newInstance(1, 1), 1), 2),
        NodeId.newInstance("host-a", 4000), "host-a:8042",
        Resource.newInstance(1, 1, Map.of("yarn.io/gpu", 2L)), Priority.newInstance(0), null);
  }

  @Test
  @SuppressWarnings("unchecked")
  void aNodeManagerIsCalledInOrderAndAContainerWhoseCallFailsIsReleased() throws Exception {
    EventQueue events = new EventQueue(10, 1, why -> { });
    AMRMClientAsync<ContainerRequest> rm = mock(AMRMClientAsync.class);
    NMClient nm = mock(NMClient.class);
    Containers containers = new Containers(events, null);
    containers.connect(rm, nm, new WorkerLaunch(new Configuration(), new Credentials()));
    Container container = container();
    containers.onContainersReceivedFromPreviousAttempts(List.of(container));
    CountDownLatch answered = new CountDownLatch(1);
    when(nm.startContainer(any(), any())).thenAnswer(call -> {
      answered.await();
      return Map.of();
    }).thenThrow(new IOException("full"));
    doThrow(new IOException("gone")).when(nm).stopContainer(any(), any());
    AmLaunch launch = AmLaunch.newBuilder().setContainerId(container.getId().toString()).build();
    containers.launch(launch);
    containers.stop(launch.getContainerId());
    verify(nm, timeout(10_000)).startContainer(any(), any());
    verify(nm, never()).stopContainer(any(), any());
    answered.countDown();
    verify(rm, timeout(10_000)).releaseAssignedContainer(container.getId());
    verify(nm).stopContainer(container.getId(), container.getNodeId());
    containers.launch(launch);
    verify(rm, timeout(10_000).times(2)).releaseAssignedContainer(container.getId());
    List<AmEvent> told = events.take(0).getEventsList();
    assertEquals(List.of("ADOPTED", "STARTED", "START_ERROR"),
        told.stream().map(event -> event.getKindCase().name()).toList());
    assertEquals("full", told.get(2).getStartError().getMessage());
  }

  @Test
  void tagsTellGpusAndLease() {
    Container container = container();
    container.setAllocationRequestId(7);
    container.setAllocationTags(Set.of("gpu=0,2;lease=L5"));
    AmContainer seen = Containers.describe(container);
    assertEquals(List.of(0, 2), seen.getGpuIdsList());
    assertEquals("L5", seen.getLeaseId());
    assertEquals("host-a", seen.getHost());
    assertEquals(7, seen.getAllocationRequestId());
    container.setAllocationTags(Set.of("gpu=x", "lease=L5"));
    assertEquals(0, Containers.describe(container).getGpuIdsCount(), "no callback fails on a tag");
  }

  @Test
  void anAskForAHostStaysThere() {
    ContainerRequest request = Containers.request(AmAsk.newBuilder().setAllocationRequestId(3).setMemoryMb(1024)
        .setVcores(2).setPriority(1).setHost("host-a").build());
    assertEquals(List.of("host-a"), request.getNodes());
    assertFalse(request.getRelaxLocality());
    assertEquals(3, request.getAllocationRequestId());
  }

  @Test
  void aDeadAgentFailsTheAttemptWithItsLastLines() throws Exception {
    Outcome outcome = outcomeOf("read line; echo \"$line\" >&2; echo why >&2; exit 9");
    assertNull(outcome.status);
    assertEquals(9, outcome.exitCode);
    assertTrue(outcome.message.contains("exit code 9"), outcome.message);
    assertTrue(outcome.message.endsWith("{\"port\": 1}\nwhy"), outcome.message);
    assertEquals(Outcome.SOFTWARE, outcomeOf("exit 0").exitCode);
    assertTrue(outcomeOf("kill -9 $$").message.contains("killed by signal 9"));
  }

  private static Outcome outcomeOf(String script) throws Exception {
    CompletableFuture<Outcome> outcome = new CompletableFuture<>();
    AgentProcess.start(List.of("/bin/bash", "-c", script), "{\"port\": 1}").onExit(outcome::complete);
    return outcome.get(20, TimeUnit.SECONDS);
  }
}
