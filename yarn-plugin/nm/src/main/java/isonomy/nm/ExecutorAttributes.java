package isonomy.nm;

import java.util.HashSet;
import java.util.Set;
import java.util.TimerTask;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.util.ReflectionUtils;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.nodelabels.ConfigurationNodeAttributesProvider;
import org.apache.hadoop.yarn.server.nodemanager.nodelabels.NodeAttributesProvider;
import org.apache.hadoop.yarn.server.nodemanager.nodelabels.ScriptBasedNodeAttributesProvider;

/**
 * Reports, besides the configured provider's attributes, that this NodeManager has an Isonomy executor (the plugin
 * places nothing on nodes without one), which GPUs have an idle container, and which it allotted itself to which
 * container. The executor adds it to the NodeManager's configuration before providers exist.
 */
public final class ExecutorAttributes extends NodeAttributesProvider {
  static final String NAME = "isonomy-executor";
  static final String IDLE = "isonomy-idle";
  /** And the GPU: its value is a container whose token does not name the GPU. */
  static final String ALLOTTED = "isonomy-gpu-";
  private static final long SAMPLE_MS = 15_000;
  private static final String CONFIGURED = "isonomy.nm.attributes-provider";
  /** Version of the contract between plugin and executor; increases when it changes. */
  private static final String VERSION = "3";

  private NodeAttributesProvider configured;
  /** What a script's provider has before the script first succeeds; null for other providers. */
  private Set<NodeAttribute> unanswered;
  private GpuLaunches gpus;

  public ExecutorAttributes() {
    super("Isonomy's node attributes");
    setIntervalTime(SAMPLE_MS);
  }

  static void addTo(Configuration conf) {
    String provider = conf.getTrimmed(YarnConfiguration.NM_NODE_ATTRIBUTES_PROVIDER_CONFIG, "");
    if (!provider.equals(ExecutorAttributes.class.getName())) {
      conf.set(CONFIGURED, provider);
      conf.set(YarnConfiguration.NM_NODE_ATTRIBUTES_PROVIDER_CONFIG, ExecutorAttributes.class.getName());
    }
  }

  @Override
  protected void serviceInit(Configuration conf) throws Exception {
    configured = provider(conf);
    gpus = GpuLaunches.of(conf);
    if (configured != null) {
      configured.init(conf);
      unanswered = configured instanceof ScriptBasedNodeAttributesProvider ? configured.getDescriptors() : null;
    }
    super.serviceInit(conf);
  }

  private static NodeAttributesProvider provider(Configuration conf) {
    String name = conf.getTrimmed(CONFIGURED, "");
    switch (name) {
      case "":
        return null;
      case YarnConfiguration.CONFIG_NODE_DESCRIPTOR_PROVIDER:
        return new ConfigurationNodeAttributesProvider();
      case YarnConfiguration.SCRIPT_NODE_DESCRIPTOR_PROVIDER:
        return new ScriptBasedNodeAttributesProvider();
      default:
        return ReflectionUtils.newInstance(conf.getClass(CONFIGURED, null, NodeAttributesProvider.class), conf);
    }
  }

  @Override
  protected void serviceStart() throws Exception {
    if (configured != null) {
      configured.start();
    }
    super.serviceStart();
  }

  @Override
  protected void serviceStop() throws Exception {
    if (configured != null) {
      configured.stop();
    }
    super.serviceStop();
  }

  @Override
  public Set<NodeAttribute> getDescriptors() {
    Set<NodeAttribute> all = new HashSet<>();
    all.add(attribute(NAME, VERSION));
    if (gpus != null) {
      String idle = gpus.idleness.value();
      if (!idle.isEmpty()) {
        all.add(attribute(IDLE, idle));
      }
      gpus.allotted().forEach((gpu, container) -> all.add(attribute(ALLOTTED + gpu, container)));
    }
    Set<NodeAttribute> others = configured == null ? null : configured.getDescriptors();
    if (others != null && others == unanswered) {
      all.add(attribute("bad-gpus", "all"));  // which GPUs were bad before the NodeManager's restart is unknown
    } else if (others != null) {
      all.addAll(others);
    }
    return all;
  }

  private static NodeAttribute attribute(String name, String value) {
    return NodeAttribute.newInstance(NodeAttribute.PREFIX_DISTRIBUTED, name, NodeAttributeType.STRING, value);
  }

  @Override
  protected void cleanUp() {}

  @Override
  public TimerTask createTimerTask() {
    return new TimerTask() {
      @Override
      public void run() {
        if (gpus != null) {
          gpus.idleness.sample(System.currentTimeMillis());
        }
      }
    };
  }
}
