package isonomy.nm;

import static java.util.stream.Collectors.toSet;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.TimerTask;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.NodeAttribute;
import org.apache.hadoop.yarn.api.records.NodeAttributeType;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.nodelabels.NodeAttributesProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The NodeManager says that its executor is ours, beside what it said before. */
class ExecutorAttributesTest {
  /** A site's own provider. */
  public static final class Other extends NodeAttributesProvider {
    public Other() {
      super("other");
      setIntervalTime(DISABLE_NODE_DESCRIPTORS_PROVIDER_FETCH_TIMER);
    }

    @Override
    protected void cleanUp() {}

    @Override
    public TimerTask createTimerTask() {
      return new TimerTask() {
        @Override
        public void run() {
          setDescriptors(Set.of(NodeAttribute.newInstance(
              NodeAttribute.PREFIX_DISTRIBUTED, "os", NodeAttributeType.STRING, "linux")));
        }
      };
    }
  }

  private static Set<String> reported(Configuration conf) {
    ExecutorAttributes.addTo(conf);
    ExecutorAttributes.addTo(conf);
    assertEquals(ExecutorAttributes.class.getName(), conf.get(YarnConfiguration.NM_NODE_ATTRIBUTES_PROVIDER_CONFIG));
    ExecutorAttributes provider = new ExecutorAttributes();
    provider.init(conf);
    provider.start();
    try {
      return provider.getDescriptors().stream()
          .map(a -> a.getAttributeKey().getAttributePrefix() + "/" + a.getAttributeKey().getAttributeName() + "="
              + a.getAttributeValue()).collect(toSet());
    } finally {
      provider.stop();
    }
  }

  @Test
  void alone() {
    assertEquals(Set.of("nm.yarn.io/isonomy-executor=3"), reported(new Configuration(false)));
  }

  @Test
  void besideTheConfiguredOnes() {
    Configuration conf = new Configuration(false);
    conf.set(YarnConfiguration.NM_NODE_ATTRIBUTES_PROVIDER_CONFIG, Other.class.getName());
    assertEquals(Set.of("nm.yarn.io/isonomy-executor=3", "nm.yarn.io/os=linux"), reported(conf));
  }

  @Test
  void untilTheScriptAnswersAllGpusAreBad(@TempDir Path dir) throws Exception {
    Path script = dir.resolve("script");
    Configuration conf = new Configuration(false);
    conf.set(YarnConfiguration.NM_NODE_ATTRIBUTES_PROVIDER_CONFIG, YarnConfiguration.SCRIPT_NODE_DESCRIPTOR_PROVIDER);
    conf.set(YarnConfiguration.NM_SCRIPT_BASED_NODE_ATTRIBUTES_PROVIDER_PATH, script.toString());
    for (String[] said : new String[][] {{"exit 1", "bad-gpus=all"}, {"echo NODE_ATTRIBUTE:bad-gpus,STRING,none",
        "bad-gpus=none"}}) {
      Files.writeString(script, "#!/bin/sh\n" + said[0] + "\n");
      assertTrue(script.toFile().setExecutable(true));
      assertEquals(Set.of("nm.yarn.io/isonomy-executor=3", "nm.yarn.io/" + said[1]), reported(conf));
    }
    Files.writeString(script, "#!/bin/sh\n");
    assertEquals(Set.of("nm.yarn.io/isonomy-executor=3"), reported(conf), "it is about something else");
  }
}
