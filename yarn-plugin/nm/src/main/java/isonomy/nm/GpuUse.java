package isonomy.nm;

import isonomy.wire.GpuTag;
import java.util.List;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;

/** A container's GPUs according to its RM-signed token, or as the executor allotted them if that names none. */
final class GpuUse {
  final String container;
  /** The GPUs of its resource. */
  final int gpus;
  final List<Integer> gpuIds;
  final String lease;
  /** Whether it has GPUs and its token names none, so that this NodeManager must say which. */
  final boolean unmanaged;

  private GpuUse(String container, int gpus, List<Integer> gpuIds, String lease, boolean unmanaged) {
    this.container = container;
    this.gpus = gpus;
    this.gpuIds = gpuIds;
    this.lease = lease;
    this.unmanaged = unmanaged;
  }

  /** `allotted`: the GPUs that a container whose token names none got from this NodeManager; empty before. */
  static GpuUse of(ContainerTokenIdentifier token, List<Integer> allotted) {
    String container = token.getContainerID().toString();
    int gpus = gpus(token.getResource());
    // sic: Hadoop spells it so
    GpuTag tag = GpuTag.read(token.getAllcationTags(), gpus);
    if (tag != null) {
      return new GpuUse(container, gpus, tag.gpuIds(), tag.lease(), false);
    }
    boolean named = token.getAllcationTags() != null && token.getAllcationTags().stream().anyMatch(GpuTag::isReserved);
    boolean unmanaged = gpus > 0 && !named && token.getExecutionType() == ExecutionType.GUARANTEED;
    return new GpuUse(container, gpus, unmanaged && allotted.size() == gpus ? allotted : List.of(), "", unmanaged);
  }

  private static int gpus(Resource resource) {
    try {
      return (int) Math.max(0, Math.min(Integer.MAX_VALUE, resource.getResourceValue(ResourceInformation.GPU_URI)));
    } catch (ResourceNotFoundException e) {
      return 0;
    }
  }

  /** The value of CUDA_VISIBLE_DEVICES; empty: no GPU is visible. */
  String visibleDevices() {
    return GpuTag.joined(gpuIds);
  }
}
