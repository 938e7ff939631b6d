package isonomy.nm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;

import java.io.IOException;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.server.nodemanager.ContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A container idles if its processes compute nothing for a minute. */
@Timeout(60)
class IdlenessTest {
  private static final long START_MS = 1_700_000_000_000L;
  private static final long STEP_MS = 15_000;

  private final Idleness idleness = new Idleness();
  private final AtomicLong cpuMs = new AtomicLong();
  private long nowMs = START_MS;

  /** Lets time pass, in which the container uses so much CPU time every 15 s. */
  private String after(int seconds, long cpuMsPerStep) {
    for (long end = nowMs + seconds * 1000L; nowMs < end;) {
      nowMs += STEP_MS;
      cpuMs.addAndGet(cpuMsPerStep);
      idleness.sample(nowMs);
    }
    return idleness.value();
  }

  private static GpuUse use(int container, Integer... gpus) {
    String ids = IntStream.range(0, gpus.length).mapToObj(i -> gpus[i].toString()).collect(Collectors.joining(","));
    return Tokens.use(container, gpus.length, "gpu=" + ids + ";lease=r1.0");
  }

  @Test
  void idleSinceItStoppedComputing() {
    idleness.watch(use(2, 1, 3), cpuMs::get);
    assertEquals("", after(120, 15_000));
    long stopped = nowMs / 1000;
    assertEquals("", after(45, 0));
    String idle = "1-" + stopped + "_3-" + stopped;
    assertEquals(idle, after(30, 0));
    assertEquals(idle, after(600, 100));
    assertEquals("", after(15, 2_000));
  }

  @Test
  void goneWithTheContainer() {
    GpuUse use = use(2, 0);
    idleness.watch(use, cpuMs::get);
    assertTrue(after(300, 0).startsWith("0-"));
    idleness.forget(use);
    assertEquals("", idleness.value());
  }

  @Test
  void unknownCpuTimeIsNotIdle() {
    idleness.watch(use(2, 0), () -> -1);
    assertEquals("", after(600, 0));
  }

  @Test
  void asMuchAsFitsIntoAnAttribute() {
    idleness.watch(use(2, IntStream.range(0, 64).boxed().toArray(Integer[]::new)), cpuMs::get);
    String value = after(120, 0);
    assertTrue(value.length() > 200 && value.length() <= 255, value);
    assertTrue(value.matches("\\d+-\\d+(_\\d+-\\d+)*"), value);
  }

  @Test
  void aNodeAttributeSaysIt(@TempDir Path dir) throws IOException {
    Configuration conf = new Configuration(false);
    conf.set(GpuLaunches.EVIDENCE_FILE, dir.resolve("evidence.jsonl").toString());
    Context nm = mock(Context.class);
    when(nm.getContainers()).thenReturn(new ConcurrentHashMap<>());
    Idleness idleness = new GpuLaunches(nm, conf, mock(ContainerExecutor.class)).idleness;
    ExecutorAttributes.addTo(conf);
    ExecutorAttributes provider = new ExecutorAttributes();
    provider.init(conf);
    idleness.watch(use(2, 1), () -> 0);
    idleness.sample(START_MS);
    idleness.sample(START_MS + Idleness.WINDOW_MS);
    String value = provider.getDescriptors().stream()
        .filter(a -> a.getAttributeKey().getAttributeName().equals(ExecutorAttributes.IDLE))
        .map(NodeAttribute::getAttributeValue).collect(Collectors.joining());
    assertEquals("1-" + START_MS / 1000, value);
  }

  @Test
  void processesAreMeasured() throws IOException, InterruptedException {
    Process busy = new ProcessBuilder("setsid", "sh", "-c", "while :; do :; done").start();
    Process asleep = new ProcessBuilder("setsid", "sleep", "60").start();
    try {
      while (Session.cpuMs(String.valueOf(busy.pid()), "none") < 200) {
        Thread.sleep(20);
      }
      assertTrue(Session.cpuMs(String.valueOf(asleep.pid()), "none") < 100);
    } finally {
      busy.destroyForcibly().waitFor();
      asleep.destroyForcibly().waitFor();
    }
    assertEquals(-1, Session.cpuMs(String.valueOf(busy.pid()), "none"));
  }
}
