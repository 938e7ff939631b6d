package isonomy.submarine;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.api.records.ResourceTypeInfo;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
import org.apache.submarine.commons.runtime.ClientContext;
import org.apache.submarine.commons.runtime.JobMonitor;
import org.apache.submarine.commons.runtime.JobSubmitter;
import org.apache.submarine.commons.runtime.RuntimeFactory;
import org.apache.submarine.commons.runtime.fs.SubmarineStorage;

/** Plugs Isonomy into the stock command line: {@code submarine.runtime.class} in submarine-site.xml. */
public final class IsonomyRuntimeFactory extends RuntimeFactory {
  /** How long to retry a ResourceManager that does not answer, in milliseconds. */
  private static final long RM_WAIT_MS = 30_000;
  /** How often to ask whether a submitted application was accepted, which takes the ResourceManager milliseconds. */
  private static final long ACCEPTED_POLL_MS = 20;

  public IsonomyRuntimeFactory(ClientContext clientContext) {
    super(clientContext);
    OneLineErrors.install();
    setWaiting(clientContext.getYarnConfig());
    registerGpuType();
  }

  @Override
  protected JobSubmitter internalCreateJobSubmitter() {
    return new IsonomyJobSubmitter(clientContext);
  }

  @Override
  protected JobMonitor internalCreateJobMonitor() {
    return new IsonomyJobMonitor(clientContext);
  }

  @Override
  protected SubmarineStorage internalCreateSubmarineStorage() {
    return new JsonStorage(clientContext);
  }

  private static void setWaiting(Configuration conf) {
    conf.setLong(YarnConfiguration.YARN_CLIENT_APPLICATION_CLIENT_PROTOCOL_POLL_INTERVAL_MS, ACCEPTED_POLL_MS);
    long configuredMs = conf.getLong(YarnConfiguration.RESOURCEMANAGER_CONNECT_MAX_WAIT_MS,
        YarnConfiguration.DEFAULT_RESOURCEMANAGER_CONNECT_MAX_WAIT_MS);
    if (configuredMs < 0 || configuredMs > RM_WAIT_MS) {
      conf.setLong(YarnConfiguration.RESOURCEMANAGER_CONNECT_MAX_WAIT_MS, RM_WAIT_MS);
    }
  }

  /** Registers the resource of {@code -worker_resources gpu=1} if the client has no resource-types.xml. */
  static void registerGpuType() {
    if (ResourceUtils.getResourceTypes().containsKey(ResourceInformation.GPU_URI)) {
      return;
    }
    List<ResourceTypeInfo> types = new ArrayList<>(ResourceUtils.getResourcesTypeInfo());
    types.add(ResourceTypeInfo.newInstance(ResourceInformation.GPU_URI, ""));
    ResourceUtils.reinitializeResources(types);
  }
}
