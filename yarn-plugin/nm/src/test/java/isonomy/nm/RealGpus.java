package isonomy.nm;

import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.util.Shell;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ResourceMappings;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.launcher.ContainerLaunch;
import org.apache.hadoop.yarn.server.nodemanager.executor.ContainerStartContext;
import org.apache.hadoop.yarn.server.nodemanager.recovery.NMNullStateStoreService;

/**
 * Runs a command in containers of the real executor, for `make gpu-test`: RealGpus FOLDER COMMAND [HELPER].
 *
 * <p>One container is leased GPU 0, one has no GPUs, and one has a GPU that the executor allots. What they print is in
 * FOLDER/leased, FOLDER/none and FOLDER/allotted. HELPER (isonomy-devices) denies them the GPUs of others, in cgroups
 * that they enter as by container-executor. The configuration is that of the class path.
 */
final class RealGpus {
  private final Path folder;
  private final String command;
  private final Configuration conf = new YarnConfiguration();
  private final ConcurrentHashMap<ContainerId, Container> containers = new ConcurrentHashMap<>();
  private final IsonomyContainerExecutor executor = new IsonomyContainerExecutor();
  private GpuDevices devices;

  private RealGpus(Path folder, String command) throws IOException {
    this.folder = folder;
    this.command = command;
    executor.setConf(conf);
    Map<String, Object> nm = Map.of("getContainers", containers, "getNMStateStore", new NMNullStateStoreService());
    executor.init(answering(Context.class, nm));
  }

  /** An object of YARN's that answers these calls, and null to others. */
  private static <T> T answering(Class<T> type, Map<String, Object> answers) {
    Class<?>[] types = {type};
    return type.cast(Proxy.newProxyInstance(type.getClassLoader(), types, (me, call, given) ->
        answers.getOrDefault(call.getName(), call.getReturnType() == boolean.class ? Boolean.FALSE : null)));
  }

  private void confine(String helper) throws IOException {
    devices = new GpuDevices();
    devices.setConf(conf);
    devices.init(GpuLaunches.of(conf)::use, arguments -> {
      String[] words = Stream.concat(Stream.of(helper), Stream.of(arguments)).toArray(String[]::new);
      new Shell.ShellCommandExecutor(words).execute();
    });
  }

  private int run(int number, String name, int gpus, String... tags) throws Exception {
    ContainerTokenIdentifier token = Tokens.token(number, gpus, ExecutionType.GUARANTEED, tags);
    ContainerId id = token.getContainerID();
    Map<String, String> environment = new HashMap<>();
    environment.put("CONTAINER_ID", id.toString());
    environment.put(GpuLaunches.VISIBLE, "0,1,2,3");
    environment.put("LD_LIBRARY_PATH", System.getenv().getOrDefault("LD_LIBRARY_PATH", ""));  // where libcuda may be
    Container container = answering(Container.class, Map.of("getContainerId", id, "getContainerTokenIdentifier", token,
        "getResourceMappings", new ResourceMappings(), "getResource", token.getResource(), "getLaunchContext",
        ContainerLaunchContext.newInstance(Map.of(), environment, List.of(), null, null, null)));
    containers.put(id, container);
    Path enter = folder.resolve(name + ".enter");
    String line = ". " + enter + "; " + command + " > " + folder.resolve(name) + " 2>&1";
    ContainerStartContext start = start(container, environment, line);
    String cgroup = "none";
    if (devices != null) {
      devices.preExecute(id, token.getResource());
      cgroup = devices.getResourcesOption(id).substring("cgroups=".length());
    }
    Files.writeString(enter, cgroup.equals("none") ? "" : "echo $$ > " + cgroup);
    try {
      return executor.launchContainer(start);
    } finally {
      if (devices != null) {
        devices.postExecute(id);
      }
      containers.remove(id);
    }
  }

  /** Writes the container's script as the NodeManager does. */
  private ContainerStartContext start(Container container, Map<String, String> environment, String line)
      throws IOException {
    ContainerId id = container.getContainerId();
    String app = id.getApplicationAttemptId().getApplicationId().toString();
    Path local = Files.createDirectories(folder.resolve("local"));
    Path logs = Files.createDirectories(folder.resolve("logs"));
    Path script = local.resolve(id + ".sh");
    Path tokens = Files.write(local.resolve(id + ".tokens"), new byte[0]);
    try (OutputStream out = Files.newOutputStream(script)) {
      executor.writeLaunchEnv(out, environment, Map.of(), List.of(line), hadoop(logs), "ann",
          ContainerLaunch.CONTAINER_SCRIPT, new LinkedHashSet<>());
    }
    executor.activateContainer(id, hadoop(local.resolve(id + ".pid")));
    Path work = local.resolve("usercache/ann/appcache").resolve(app).resolve(id.toString());
    return new ContainerStartContext.Builder().setContainer(container).setUser("ann").setAppId(app)
        .setNmPrivateContainerScriptPath(hadoop(script)).setNmPrivateTokensPath(hadoop(tokens))
        .setContainerWorkDir(hadoop(work)).setLocalDirs(List.of(local.toString())).setLogDirs(List.of(logs.toString()))
        .setLocalizedResources(Map.of()).setFilecacheDirs(List.of()).setUserLocalDirs(List.of())
        .setContainerLocalDirs(List.of()).setContainerLogDirs(List.of()).setUserFilecacheDirs(List.of())
        .setApplicationLocalDirs(List.of()).build();
  }

  private static org.apache.hadoop.fs.Path hadoop(Path path) {
    return new org.apache.hadoop.fs.Path(path.toString());
  }

  public static void main(String[] words) throws Exception {
    RealGpus machine = new RealGpus(Path.of(words[0]), words[1]);
    if (words.length > 2) {
      machine.confine(words[2]);
    }
    int leased = machine.run(1, "leased", 1, "gpu=0", "lease=r1.1");
    int none = machine.run(2, "none", 0);
    System.exit(leased + none + machine.run(3, "allotted", 1));
  }
}
