package isonomy.yarn;

import isonomy.wire.GpuTag;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** GPUs in YARN's resources, containers and requests. */
final class Gpus {
  static final String RESOURCE = ResourceInformation.GPU_URI;
  private static final Logger LOG = LoggerFactory.getLogger(Gpus.class);

  private Gpus() {}

  static int of(Resource resource) {
    if (resource == null) {
      return 0;
    }
    try {
      return (int) Math.max(0, Math.min(Integer.MAX_VALUE, resource.getResourceValue(RESOURCE)));
    } catch (ResourceNotFoundException e) {
      return 0;
    }
  }

  static int of(SchedulingRequest request) {
    return request.getResourceSizing() == null ? 0 : of(request.getResourceSizing().getResources());
  }

  /** Whether a container has GPUs, or will have once it is allocated; executors show an opportunistic one none. */
  static boolean has(RMContainer container) {
    return container.getState() != RMContainerState.RESERVED && container.getExecutionType() == ExecutionType.GUARANTEED
        && of(container.getAllocatedResource()) > 0;
  }

  /** The tag with a container's GPU ids; null while they are unknown, as nobody gave it any before its launch. */
  static GpuTag tag(RMContainer container) {
    return GpuTag.read(container.getAllocationTags(), of(container.getAllocatedResource()));
  }

  /** Of the ask that a container answers. */
  static SchedulerRequestKey key(RMContainer container) {
    return SchedulerRequestKey.extractFrom(container.getContainer());
  }

  /** Whether it has GPUs with unknown ids. */
  static boolean untagged(RMContainer container) {
    return has(container) && tag(container) == null;
  }

  /** Removes from an application master's request the tags that only the plugin may write. */
  static void strip(SchedulingRequest request) {
    Set<String> own = own(request);
    if (request.getAllocationTags() != null && own.size() < request.getAllocationTags().size()) {
      request.setAllocationTags(own);
      LOG.debug("Allocation tags that name GPUs were taken out of a request");
    }
  }

  /** The tags that the application master may write. */
  private static Set<String> own(SchedulingRequest request) {
    Set<String> own = new TreeSet<>();
    if (request != null && request.getAllocationTags() != null) {
      request.getAllocationTags().stream().filter(t -> t != null && !GpuTag.isReserved(t)).forEach(own::add);
    }
    return own;
  }

  /** The tags of a container to place: the plugin's, and those of the application master. */
  static Set<String> tags(List<Integer> gpuIds, String leaseId, SchedulingRequest original) {
    Set<String> tags = own(original);
    tags.addAll(GpuTag.of(gpuIds, leaseId));
    return tags;
  }
}
