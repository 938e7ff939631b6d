package isonomy.nm;

import java.io.IOException;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.linux.privileged.PrivilegedOperation;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.linux.privileged.PrivilegedOperation.OperationType;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.linux.privileged.PrivilegedOperationException;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.linux.privileged.PrivilegedOperationExecutor;
import org.apache.hadoop.yarn.server.nodemanager.util.LCEResourcesHandler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Denies a container the GPUs that are not its own, by a devices cgroup (v1): CUDA_VISIBLE_DEVICES is only a request to
 * the program, but the kernel enforces the cgroup. The value of
 * {@code yarn.nodemanager.linux-container-executor.resources-handler.class}.
 *
 * <p>The NodeManager makes a cgroup for each container. Only root may deny devices in it, so that is done by the setuid
 * binary's {@code --module-gpu} is for (YARN's own GPU plugin calls it in the same way).
 */
@SuppressWarnings("deprecation")  // the interface has no successor that is public
public class GpuDevices implements LCEResourcesHandler {
  /** Minor device number of each GPU, in the order of their ids: N of /dev/nvidiaN. */
  static final String MINORS = "isonomy.nm.gpu-minors";
  private static final int DELETE_TRIES = 20;
  private static final long DELETE_AGAIN_MS = 50;
  private static final Logger LOG = LoggerFactory.getLogger(GpuDevices.class);

  /** The setuid binary, as the NodeManager's user may call it. */
  interface Binary {
    void denyGpus(List<String> arguments) throws PrivilegedOperationException;
  }

  private final Set<ContainerId> confined = ConcurrentHashMap.newKeySet();
  private Configuration conf;
  private Function<ContainerId, GpuUse> uses;
  private Binary binary;
  private List<Integer> minors;
  private Path cgroups;

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
    PrivilegedOperationExecutor privileged = PrivilegedOperationExecutor.getInstance(conf);
    init(((IsonomyLinuxContainerExecutor) executor)::use, arguments -> {
      PrivilegedOperation operation = new PrivilegedOperation(OperationType.GPU, arguments);
      privileged.executePrivilegedOperation(operation, true);
    });
  }

  void init(Function<ContainerId, GpuUse> uses, Binary binary) throws IOException {
    this.uses = uses;
    this.binary = binary;
    minors = minors(conf.getTrimmedStrings(MINORS));
    String mount = conf.getTrimmed(YarnConfiguration.NM_LINUX_CONTAINER_CGROUPS_MOUNT_PATH, "/sys/fs/cgroup");
    String hierarchy = conf.getTrimmed(YarnConfiguration.NM_LINUX_CONTAINER_CGROUPS_HIERARCHY, "/hadoop-yarn");
    cgroups = Path.of(mount, "devices", hierarchy);
    if (!Files.isWritable(cgroups)) {
      throw new IOException(cgroups + " is no cgroup that the NodeManager may write to: make it and give it to its user"
          + " (cgroup v2 has no devices controller: there remove " + YarnConfiguration.NM_LINUX_CONTAINER_RESOURCES_HANDLER
          + ")");
    }
  }

  private static List<Integer> minors(String[] values) throws IOException {
    List<Integer> found = new ArrayList<>();
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
    GpuUse use = uses.apply(id);
    if (use != null && use.isUnmanaged() && use.gpuIds().isEmpty()) {
      return;  // YARN's own plugin for GPUs confines it
    }
    Set<Integer> denied = new TreeSet<>(minors);
    if (use != null) {
      for (int gpu : use.gpuIds()) {
        if (gpu >= minors.size()) {
          throw new IOException("GPU " + gpu + " has no minor device number in " + MINORS);
        }
        denied.remove(minors.get(gpu));
      }
    }
    if (denied.isEmpty()) {
      return;
    }
    Files.createDirectories(cgroup(id));
    confined.add(id);
    String numbers = denied.stream().map(String::valueOf).collect(Collectors.joining(","));
    try {
      binary.denyGpus(List.of("--container_id", id.toString(), "--excluded_gpus", numbers));
    } catch (PrivilegedOperationException e) {
      postExecute(id);
      throw new IOException("the GPUs " + numbers + " cannot be denied to " + id + " ([gpu] in container-executor.cfg?)", e);
    }
  }

  /** The option by which container-executor moves the container's first process into its cgroup. */
  @Override
  public String getResourcesOption(ContainerId id) {
    return "cgroups=" + (confined.contains(id) ? cgroup(id).resolve("tasks") : "none");
  }

  /** Deletes the cgroup once the processes have ended; a surviving process keeps the cgroup, as it keeps its GPUs. */
  @Override
  public void postExecute(ContainerId id) {
    confined.remove(id);
    try {
      for (int k = 0; Files.exists(cgroup(id)); k++) {
        if (delete(cgroup(id))) {
          return;
        }
        if (k == DELETE_TRIES) {
          LOG.warn("{} still has processes and is left", cgroup(id));
          return;
        }
        Thread.sleep(DELETE_AGAIN_MS);
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  /** Removes a cgroup's directory, which needs no removal of its files; false while it has processes. */
  private static boolean delete(Path cgroup) {
    try {
      return Files.deleteIfExists(cgroup);
    } catch (DirectoryNotEmptyException e) {
      return false;
    } catch (IOException e) {
      LOG.debug("{} cannot be removed yet", cgroup, e);
      return false;
    }
  }

  private Path cgroup(ContainerId id) {
    return cgroups.resolve(id.toString());
  }
}
