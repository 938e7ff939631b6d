package isonomy.yarn;

import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;

/** GPUs in YARN's resources, and GPU ids in a container's allocation tags: "gpu=0,2" and "lease=L". */
final class Gpus {
  static final String RESOURCE = ResourceInformation.GPU_URI;
  private static final String GPU_TAG = "gpu=";
  private static final String LEASE_TAG = "lease=";

  private Gpus() {}

  static int of(Resource resource) {
    if (resource == null) {
      return 0;
    }
    try {
      return Math.toIntExact(resource.getResourceValue(RESOURCE));
    } catch (ResourceNotFoundException e) {
      return 0;
    }
  }

  /** The tags that a placed container carries. */
  static Set<String> tags(List<Integer> gpuIds, String leaseId) {
    String ids = gpuIds.stream().sorted().map(String::valueOf).collect(Collectors.joining(","));
    return new TreeSet<>(List.of(GPU_TAG + ids, LEASE_TAG + leaseId));
  }

  /** The GPU ids in a container's tags; none where it has no such tag or one that is not ours. */
  static List<Integer> ids(Set<String> tags) {
    String ids = valueOf(tags, GPU_TAG);
    if (!ids.matches("\\d{1,6}(,\\d{1,6})*")) {
      return List.of();
    }
    return Arrays.stream(ids.split(",")).map(Integer::valueOf).toList();
  }

  static String lease(Set<String> tags) {
    return valueOf(tags, LEASE_TAG);
  }

  private static String valueOf(Set<String> tags, String key) {
    if (tags == null) {
      return "";
    }
    return tags.stream().filter(t -> t.startsWith(key)).map(t -> t.substring(key.length())).findFirst().orElse("");
  }
}
