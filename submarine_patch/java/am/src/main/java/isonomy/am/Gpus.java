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
    GpuTag tag = tag(container);
    if (tag != null) {
      builder.addAllGpuIds(tag.gpuIds()).setLeaseId(tag.lease());
    }
    return builder.build();
  }

  private static GpuTag tag(Container container) {
    try {
      int gpus = (int) container.getResource().getResourceValue(ResourceInformation.GPU_URI);
      return GpuTag.read(container.getAllocationTags(), gpus);
    } catch (ResourceNotFoundException e) {
      return GpuTag.read(container.getAllocationTags()); // no resource-types.xml on the master's class path
    }
  }
}
