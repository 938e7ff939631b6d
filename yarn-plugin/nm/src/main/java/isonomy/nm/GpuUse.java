package isonomy.nm;

import isonomy.wire.GpuTag;
import java.util.List;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;

/** A container's GPUs according to its RM-signed token. */
final class GpuUse {
  private final String container;
  private final List<Integer> gpuIds;
  private final String lease;
  private final boolean unmanaged;

  private GpuUse(String container, List<Integer> gpuIds, String lease, boolean unmanaged) {
    this.container = container;
    this.gpuIds = gpuIds;
    this.lease = lease;
    this.unmanaged = unmanaged;
  }

  static GpuUse of(ContainerTokenIdentifier token) {
    String container = token.getContainerID().toString();
    int gpus = gpus(token.getResource());
    // sic: Hadoop spells it so
    GpuTag tag = GpuTag.read(token.getAllcationTags(), gpus);
    if (tag != null) {
      return new GpuUse(container, tag.gpuIds(), tag.lease(), false);
    }
    boolean named = token.getAllcationTags() != null && token.getAllcationTags().stream().anyMatch(GpuTag::isReserved);
    return new GpuUse(container, List.of(), "", gpus > 0 && !named && token.getExecutionType() == ExecutionType.GUARANTEED);
  }

  private static int gpus(Resource resource) {
    try {
      return (int) Math.max(0, Math.min(Integer.MAX_VALUE, resource.getResourceValue(ResourceInformation.GPU_URI)));
    } catch (ResourceNotFoundException e) {
      return 0;
    }
  }

  String container() {
    return container;
  }

  List<Integer> gpuIds() {
    return gpuIds;
  }

  String lease() {
    return lease;
  }

  /** Whether plain CapacityScheduler placed it with GPUs, so that Isonomy does not set which ones it sees. */
  boolean isUnmanaged() {
    return unmanaged;
  }

  /** The value of CUDA_VISIBLE_DEVICES; empty: no GPU is visible. */
  String visibleDevices() {
    return GpuTag.joined(gpuIds);
  }
}
