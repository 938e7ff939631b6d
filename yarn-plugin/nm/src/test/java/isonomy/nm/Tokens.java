package isonomy.nm;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.api.ContainerType;

/** Container tokens as the ResourceManager would sign them. */
final class Tokens {
  /** Of this JVM alone: a container's processes are found by its id, and killed. */
  private static final ApplicationId APP = ApplicationId.newInstance(ProcessHandle.current().pid(), 1);

  private Tokens() {}

  static ContainerId id(int number) {
    return ContainerId.newContainerId(ApplicationAttemptId.newInstance(APP, 1), number);
  }

  static ContainerTokenIdentifier token(int number, int gpus, ExecutionType type, String... tags) {
    Resource resource = gpus == 0 ? Resource.newInstance(1, 1) : Resource.newInstance(1, 1, Map.of("yarn.io/gpu", (long) gpus));
    return new ContainerTokenIdentifier(id(number), 0, "host:1", "ann", resource, 0, 0, 0, Priority.newInstance(1), 0,
        null, null, ContainerType.TASK, type, 0, Set.of(tags));
  }

  static GpuUse use(int number, int gpus, String... tags) {
    return GpuUse.of(token(number, gpus, ExecutionType.GUARANTEED, tags), List.of());
  }
}
