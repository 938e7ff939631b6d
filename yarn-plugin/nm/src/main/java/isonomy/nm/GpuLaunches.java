package isonomy.nm;

import java.io.IOException;
import java.nio.file.Path;
import java.util.LinkedHashSet;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.ConfigurationException;
import org.apache.hadoop.yarn.exceptions.ResourceNotFoundException;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What both executors do around a container: its GPUs into the environment, one container a GPU, evidence. */
final class GpuLaunches {
  static final String EVIDENCE_FILE = "isonomy.nm.evidence-file";
  static final String GPU_WAIT_MS = "isonomy.nm.gpu-wait-ms";
  static final String VISIBLE = "CUDA_VISIBLE_DEVICES";
  static final String LEASE = "ISONOMY_LEASE";
  private static final long GPU_WAIT_MS_DEFAULT = 30_000;
  private static final Logger LOG = LoggerFactory.getLogger(GpuLaunches.class);

  /** A launch as the executor's parent class does it. */
  interface Launch {
    int run() throws IOException, ConfigurationException;
  }

  /** Waiting for a container that runs already. */
  interface Wait {
    int run() throws IOException, InterruptedException;
  }

  private final Context nm;
  private final Evidence evidence;
  private final GpuGate gate = new GpuGate();
  private final long waitMs;

  GpuLaunches(Context nm, Configuration conf) throws IOException {
    this.nm = nm;
    this.waitMs = conf.getLong(GPU_WAIT_MS, GPU_WAIT_MS_DEFAULT);
    String node = conf.get(YarnConfiguration.NM_ADDRESS, "").replaceAll(":\\d+$", "");
    this.evidence = new Evidence(evidenceFile(conf), node);
  }

  private static Path evidenceFile(Configuration conf) {
    String file = conf.getTrimmed(EVIDENCE_FILE, "");
    if (!file.isEmpty()) {
      return Path.of(file);
    }
    String local = conf.getTrimmedStrings(YarnConfiguration.NM_LOCAL_DIRS, "/tmp/nm-local-dir")[0];
    return Path.of(local.replaceFirst("^file:", "")).resolveSibling("isonomy-evidence.jsonl");
  }

  /** Overrides what the AM wrote: only the token, signed by the ResourceManager, says which GPUs are visible. */
  void visible(Map<String, String> environment, LinkedHashSet<String> nmVars) {
    String id = environment.get("CONTAINER_ID");
    Container container = id == null ? null : nm.getContainers().get(ContainerId.fromString(id));
    if (container == null) {
      environment.put(VISIBLE, "");
      nmVars.add(VISIBLE);
      return;
    }
    GpuUse use = use(container);
    if (use.gpuIds().isEmpty() && hasGpus(container)) {
      return; // placed by plain CapacityScheduler (bypass): which GPUs is not ours to say
    }
    environment.put(VISIBLE, use.visibleDevices());
    environment.put(LEASE, use.lease());
    nmVars.add(VISIBLE);
    nmVars.add(LEASE);
  }

  int launch(Container container, Launch launch) throws IOException, ConfigurationException {
    GpuUse use = use(container);
    if (use.gpuIds().isEmpty()) {
      return launch.run();
    }
    enter(use);
    int exitCode = -1;
    try {
      evidence.started(use);
      exitCode = launch.run();
      return exitCode;
    } finally {
      evidence.ended(use, exitCode);
      gate.leave(use);
    }
  }

  /** After a restart of the NodeManager the container holds its GPUs as before. */
  int reacquire(ContainerId id, Wait wait) throws IOException, InterruptedException {
    Container container = nm.getContainers().get(id);
    if (container == null || use(container).gpuIds().isEmpty()) {
      return wait.run();
    }
    GpuUse use = use(container);
    enter(use);
    int exitCode = -1;
    try {
      exitCode = wait.run();
      return exitCode;
    } finally {
      evidence.ended(use, exitCode);
      gate.leave(use);
    }
  }

  private void enter(GpuUse use) throws IOException {
    try {
      String other = gate.enter(use, waitMs);
      if (other != null) {
        throw new IOException("GPUs " + use.visibleDevices() + " are still held by " + other + " after " + waitMs
            + " ms (" + GPU_WAIT_MS + ")");
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while waiting for GPUs " + use.visibleDevices(), e);
    }
    LOG.info("{} has GPUs {} by lease {}", use.container(), use.visibleDevices(), use.lease());
  }

  private static boolean hasGpus(Container container) {
    try {
      return container.getResource().getResourceValue(ResourceInformation.GPU_URI) > 0;
    } catch (ResourceNotFoundException e) {
      return false;
    }
  }

  private static GpuUse use(Container container) {
    // sic: Hadoop spells it so
    return GpuUse.of(container.getContainerId().toString(), container.getContainerTokenIdentifier().getAllcationTags());
  }
}
