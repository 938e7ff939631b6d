package isonomy.nm;

import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.nodemanager.ContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ResourceMappings;
import org.apache.hadoop.yarn.server.nodemanager.recovery.NMNullStateStoreService;

/** What both of Isonomy's executors share, in a NodeManager without processes that can be restarted. */
public final class ExecutorOfTest {
  /** The body of a container. */
  public interface Body {
    void run(List<Integer> gpuIds);
  }

  private final ConcurrentHashMap<ContainerId, Container> containers = new ConcurrentHashMap<>();
  private final Path dir;
  private GpuLaunches gpus;
  private ExecutorAttributes attributes;

  public ExecutorOfTest(Path dir) throws IOException {
    this.dir = dir;
    restart();
  }

  /** As after kill -9: its containers run on, and it knows of them what YARN's state store has. */
  public void restart() throws IOException {
    Context nm = mock(Context.class);
    when(nm.getContainers()).thenReturn(containers);
    when(nm.getNMStateStore()).thenReturn(new NMNullStateStoreService());
    when(nm.getNodeId()).thenReturn(NodeId.newInstance("n1", 8041));
    Configuration conf = new Configuration(false);
    conf.set(GpuLaunches.EVIDENCE_FILE, dir.resolve("evidence.jsonl").toString());
    gpus = new GpuLaunches(nm, conf, mock(ContainerExecutor.class));
    attributes = new ExecutorAttributes();
    attributes.init(conf);
  }

  public Set<NodeAttribute> attributes() {
    return attributes.getDescriptors();
  }

  /** Starts a container and waits for its end; returns its exit code. */
  public int launch(ContainerTokenIdentifier token, Body body) throws Exception {
    Container container = mock(Container.class);
    ResourceMappings mappings = new ResourceMappings();
    when(container.getContainerId()).thenReturn(token.getContainerID());
    when(container.getContainerTokenIdentifier()).thenReturn(token);
    when(container.getResourceMappings()).thenReturn(mappings);
    containers.put(token.getContainerID(), container);
    Map<String, String> environment = new HashMap<>(Map.of("CONTAINER_ID", token.getContainerID().toString()));
    GpuLaunches now = gpus;
    now.visible(environment, new LinkedHashSet<>());
    try {
      return now.launch(container, () -> {
        body.run(Arrays.stream(environment.get(GpuLaunches.VISIBLE).split(","))
            .filter(id -> !id.isEmpty()).map(Integer::valueOf).collect(Collectors.toList()));
        return 0;
      });
    } finally {
      containers.remove(token.getContainerID());
    }
  }

  /** Takes up a container that runs, after a restart; `body` lasts until its end. */
  public void reacquire(ContainerId id, Runnable body) throws Exception {
    gpus.reacquire(id, () -> {
      body.run();
      return 0;
    });
  }
}
