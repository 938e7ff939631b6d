package isonomy.nm;

import java.util.List;
import java.util.Set;

/** What the RM-signed container token says of a container's GPUs: tags "gpu=0,2" and "lease=L". */
record GpuUse(String container, List<Integer> gpuIds, String lease) {
  private static final String GPU_TAG = "gpu=";
  private static final String LEASE_TAG = "lease=";

  static GpuUse of(String container, Set<String> tags) {
    String ids = value(tags, GPU_TAG);
    List<Integer> gpus =
        ids.matches("\\d+(,\\d+)*") ? List.of(ids.split(",")).stream().map(Integer::valueOf).toList() : List.of();
    return new GpuUse(container, gpus, value(tags, LEASE_TAG));
  }

  /** The value of CUDA_VISIBLE_DEVICES; empty: no GPU is visible. */
  String visibleDevices() {
    return String.join(",", gpuIds.stream().map(String::valueOf).toList());
  }

  private static String value(Set<String> tags, String key) {
    return tags == null ? ""
        : tags.stream().filter(t -> t.startsWith(key)).map(t -> t.substring(key.length())).findFirst().orElse("");
  }
}
