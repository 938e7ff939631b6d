package isonomy.am;

import isonomy.wire.v1.AmContainer;
import org.apache.hadoop.yarn.api.records.Container;

/** The GPU ids and the lease of a container, as the ResourceManager signed them: allocation tags gpu=0,2 and lease=x. */
final class Gpus {
  private static final String GPU_TAG = "gpu=";
  private static final String LEASE_TAG = "lease=";

  private Gpus() {
  }

  static AmContainer describe(Container container) {
    AmContainer.Builder builder = AmContainer.newBuilder().setContainerId(container.getId().toString())
        .setNodeId(container.getNodeId().toString()).setHost(container.getNodeId().getHost())
        .setAllocationRequestId(container.getAllocationRequestId());
    if (container.getNodeHttpAddress() != null) {
      builder.setNodeHttpAddress(container.getNodeHttpAddress());
    }
    if (container.getAllocationTags() != null) {
      container.getAllocationTags().forEach(tag -> addTag(builder, tag));
    }
    return builder.build();
  }

  private static void addTag(AmContainer.Builder builder, String tag) {
    if (tag.startsWith(LEASE_TAG)) {
      builder.setLeaseId(tag.substring(LEASE_TAG.length()));
    } else if (tag.startsWith(GPU_TAG)) {
      for (String id : tag.substring(GPU_TAG.length()).split(",")) {
        if (!id.isBlank()) {
          builder.addGpuIds(Integer.parseInt(id.strip()));
        }
      }
    }
  }
}
