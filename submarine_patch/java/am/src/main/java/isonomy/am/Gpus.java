package isonomy.am;

import isonomy.wire.GpuTag;
import isonomy.wire.v1.AmContainer;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;

/** The GPU ids and the lease of a container, as the ResourceManager signed them. */
final class Gpus {
  private Gpus() {
  }

  static AmContainer describe(Container container) {
    AmContainer.Builder builder = AmContainer.newBuilder().setContainerId(container.getId().toString())
        .setNodeId(container.getNodeId().toString()).setHost(container.getNodeId().getHost())
        .setAllocationRequestId(container.getAllocationRequestId());
    if (container.getNodeHttpAddress() != null) {
      builder.setNodeHttpAddress(container.getNodeHttpAddress());
    }
    GpuTag tag = GpuTag.read(container.getAllocationTags(), gpus(container));
    if (tag != null) {
      builder.addAllGpuIds(tag.gpuIds()).setLeaseId(tag.lease());
    }
    return builder.build();
  }

  private static int gpus(Container container) {
    try {
      return (int) container.getResource().getResourceValue(ResourceInformation.GPU_URI);
    } catch (ResourceNotFoundException e) {
      return 0;
    }
  }
}
