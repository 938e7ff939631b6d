package isonomy.wire;

import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The GPU ids and the lease of a container, as allocation tags in the token that the ResourceManager signs: "gpu=0,2" and
 * "lease=L". Every version since 0.1 reads this form; the single tag "gpu=0,2;lease=L" is also read.
 *
 * <p>Application masters may give their containers allocation tags too. So the plugin removes tags like its own
 * ({@link #isReserved}) from all requests, and tags are valid only if there is one of each kind and they name
 * as many GPUs as the container's resource has.
 */
public final class GpuTag {
  private static final String GPU = "gpu=";
  private static final String LEASE = "lease=";
  private static final int LENGTH_MAX = 8192;
  private static final Pattern LEASE_ID = Pattern.compile("[A-Za-z0-9._:/@+-]{0,255}");
  private static final Pattern TAG = Pattern.compile("gpu=(\\d{1,5}(?:,\\d{1,5})*+)(?:;lease=(.*))?");

  private final List<Integer> gpuIds;
  private final String lease;

  private GpuTag(List<Integer> gpuIds, String lease) {
    this.gpuIds = gpuIds;
    this.lease = lease;
  }

  /** The tags of a container to place. Throws IllegalArgumentException if they could not be read back. */
  public static Set<String> of(Collection<Integer> gpuIds, String lease) {
    Set<String> tags = Set.of(GPU + joined(gpuIds.stream().sorted().collect(Collectors.toList())), LEASE + lease);
    if (read(tags, gpuIds.size()) == null) {
      throw new IllegalArgumentException("GPUs " + gpuIds + " of lease \"" + lease + "\" make no tags");
    }
    return tags;
  }

  /** Whether a master may not give its containers this tag. */
  public static boolean isReserved(String tag) {
    return tag.startsWith(GPU) || tag.startsWith(LEASE);
  }

  /** The GPUs and lease in a container's tags; null unless they name exactly this number of GPUs. */
  public static GpuTag read(Set<String> tags, int gpus) {
    GpuTag tag = read(tags);
    return tag == null || tag.gpuIds.size() != gpus ? null : tag;
  }

  /** The GPUs and lease in the tags of a container of unknown resource; null if they name no GPUs. */
  public static GpuTag read(Set<String> tags) {
    String tag = only(tags, GPU);
    Matcher parts = tag == null || tag.length() > LENGTH_MAX ? null : TAG.matcher(tag);
    if (parts == null || !parts.matches()) {
      return null;
    }
    String apart = only(tags, LEASE);
    String lease = parts.group(2) != null ? parts.group(2) : apart == null ? "" : apart.substring(LEASE.length());
    List<Integer> ids =
        Stream.of(parts.group(1).split(",")).map(Integer::valueOf).sorted().collect(Collectors.toUnmodifiableList());
    if (new HashSet<>(ids).size() != ids.size() || !LEASE_ID.matcher(lease).matches()) {
      return null;
    }
    return new GpuTag(ids, lease);
  }

  /** The only tag with this prefix; null without one or with several. */
  private static String only(Set<String> tags, String beginning) {
    List<String> found = tags == null ? List.of()
        : tags.stream().filter(tag -> tag.startsWith(beginning)).collect(Collectors.toList());
    return found.size() == 1 ? found.get(0) : null;
  }

  /** The GPU ids, sorted and unique. */
  public List<Integer> gpuIds() {
    return gpuIds;
  }

  public String lease() {
    return lease;
  }

  /** Ids in the form of CUDA_VISIBLE_DEVICES and the tag. */
  public static String joined(Collection<Integer> ids) {
    return ids.stream().map(String::valueOf).collect(Collectors.joining(","));
  }
}
