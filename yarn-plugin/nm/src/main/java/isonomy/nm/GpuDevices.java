package isonomy.nm;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.Uninterruptibles;
import org.apache.hadoop.util.Shell;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.util.LCEResourcesHandler;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Denies a container the GPUs that are not its own, by its cgroup (v1 or v2): CUDA_VISIBLE_DEVICES is only a request to
 * the program, but the kernel enforces the cgroup. The value of
 * {@code yarn.nodemanager.linux-container-executor.resources-handler.class}.
 *
 * <p>The NodeManager makes a cgroup for each container, where YARN's own handlers look for it too. Only root may deny
 * devices in it, so that is done by {@code confs/nodemanager/isonomy-devices}, by sudo.
 */
@SuppressWarnings("deprecation")  // the interface has no successor that is public
public class GpuDevices implements LCEResourcesHandler {
  /** Minor device number of each GPU, in the order of their ids: N of /dev/nvidiaN; by default the ids. */
  static final String MINORS = "isonomy.nm.gpu-minors";
  private static final String[] HELPER = {"sudo", "-n", "/usr/local/sbin/isonomy-devices"};
  private static final long HELPER_MS = 30_000;
  /** Major device number of /dev/nvidiaN. */
  private static final String NVIDIA = "195:";
  private static final int DELETE_TRIES = 20;
  private static final long DELETE_AGAIN_MS = 50;
  private static final Logger LOG = LoggerFactory.getLogger(GpuDevices.class);

  /** Root's helper, as the NodeManager's user may call it: a cgroup, and devices as MAJOR:MINOR. */
  interface Helper {
    void deny(String... arguments) throws IOException;
  }

  private final Set<ContainerId> confined = ConcurrentHashMap.newKeySet();
  /** Those that have ended and whose cgroup still had processes. */
  private final Set<ContainerId> left = ConcurrentHashMap.newKeySet();
  private Configuration conf;
  private Function<ContainerId, GpuUse> uses;
  private Helper helper;
  private List<Integer> minors;
  private Path cgroups;
  private String entry;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public void init(LinuxContainerExecutor executor) throws IOException {
    if (!(executor instanceof IsonomyLinuxContainerExecutor)) {
      throw new IOException(getClass().getName() + " needs " + IsonomyLinuxContainerExecutor.class.getName() + " as "
          + YarnConfiguration.NM_CONTAINER_EXECUTOR);
    }
    init(((IsonomyLinuxContainerExecutor) executor)::use, arguments -> {
      String[] command = Stream.of(HELPER, arguments).flatMap(Stream::of).toArray(String[]::new);
      new Shell.ShellCommandExecutor(command, null, null, HELPER_MS).execute();
    });
    helper.deny("--check");
  }

  void init(Function<ContainerId, GpuUse> uses, Helper helper) throws IOException {
    this.uses = uses;
    this.helper = helper;
    minors = minors(conf.getTrimmedStrings(MINORS), ResourceUtils.getNodeResourceInformation(conf));
    String mount = conf.getTrimmed(YarnConfiguration.NM_LINUX_CONTAINER_CGROUPS_MOUNT_PATH, "/sys/fs/cgroup");
    String hierarchy = conf.getTrimmed(YarnConfiguration.NM_LINUX_CONTAINER_CGROUPS_HIERARCHY, "/hadoop-yarn");
    boolean v2 = Files.exists(Path.of(mount, "cgroup.controllers"));
    cgroups = Path.of(mount, v2 ? "" : "devices", hierarchy);
    entry = v2 ? "cgroup.procs" : "tasks";
    if (!Files.isWritable(cgroups)) {
      throw new IOException(cgroups + " is no cgroup that the NodeManager may write to: make it and give it to its user");
    }
  }

  private static List<Integer> minors(String[] values, Map<String, ResourceInformation> machine) throws IOException {
    List<Integer> found = new ArrayList<>();
    ResourceInformation gpus = machine.get(ResourceInformation.GPU_URI);
    for (int id = 0; values.length == 0 && gpus != null && id < gpus.getValue(); id++) {
      found.add(id);
    }
    for (String value : values) {
      if (!value.matches("\\d{1,3}") || found.contains(Integer.valueOf(value))) {
        throw new IOException(MINORS + ": minor device numbers, such as 0,1,2,3 (got " + String.join(",", values) + ")");
      }
      found.add(Integer.valueOf(value));
    }
    if (found.isEmpty()) {
      throw new IOException(MINORS + ": say the minor device number of each GPU, such as 0,1,2,3");
    }
    return found;
  }

  /** Makes the container's cgroup and denies it all other GPUs; a container that cannot be confined does not start. */
  @Override
  public void preExecute(ContainerId id, Resource resource) throws IOException {
    left.removeIf(ended -> ended.equals(id) || delete(cgroup(ended)));
    GpuUse use = uses.apply(id);
    if (use != null && use.unmanaged && use.gpuIds.isEmpty()) {
      return;  // YARN's own plugin for GPUs confines it
    }
    Set<Integer> denied = new TreeSet<>(minors);
    if (use != null) {
      for (int gpu : use.gpuIds) {
        if (gpu >= minors.size()) {
          throw new IOException("GPU " + gpu + " has no minor device number in " + MINORS);
        }
        denied.remove(minors.get(gpu));
      }
    }
    Files.createDirectories(cgroup(id));
    confined.add(id);  // also with all GPUs: by its cgroup Session finds who left the container's session
    if (denied.isEmpty()) {
      return;
    }
    try {
      helper.deny(Stream.concat(Stream.of(cgroup(id).toString()), denied.stream().map(minor -> NVIDIA + minor))
          .toArray(String[]::new));
    } catch (IOException e) {
      postExecute(id);
      throw new IOException("the GPUs " + denied + " cannot be denied to " + id + " (isonomy preflight)", e);
    }
  }

  /** The option by which container-executor moves the container's first process into its cgroup. */
  @Override
  public String getResourcesOption(ContainerId id) {
    return "cgroups=" + (confined.contains(id) ? cgroup(id).resolve(entry) : "none");
  }

  /** Deletes the cgroup once the processes have ended; a surviving process keeps the cgroup, as it keeps its GPUs. */
  @Override
  public void postExecute(ContainerId id) {
    confined.remove(id);
    for (int k = 0; k < DELETE_TRIES; k++) {
      if (delete(cgroup(id))) {
        return;
      }
      Uninterruptibles.sleepUninterruptibly(DELETE_AGAIN_MS, TimeUnit.MILLISECONDS);
    }
    LOG.warn("{} still has processes and is left until a later container's start", cgroup(id));
    left.add(id);
  }

  /** Removes a cgroup's directory, which needs no removal of its files; false while it has processes. */
  private static boolean delete(Path cgroup) {
    try {
      Files.deleteIfExists(cgroup);
      return true;
    } catch (IOException e) {
      LOG.debug("{} cannot be removed yet", cgroup, e);
      return false;
    }
  }

  private Path cgroup(ContainerId id) {
    return cgroups.resolve(id.toString());
  }
}
