package isonomy.nm;

import java.io.IOException;
import java.io.OutputStream;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.exceptions.ConfigurationException;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor;
import org.apache.hadoop.yarn.server.nodemanager.executor.ContainerReacquisitionContext;
import org.apache.hadoop.yarn.server.nodemanager.executor.ContainerStartContext;

/** LinuxContainerExecutor, with a container's GPUs from the token that the ResourceManager signed. */
public class IsonomyLinuxContainerExecutor extends LinuxContainerExecutor {
  GpuLaunches gpus;

  @Override
  public void init(Context context) throws IOException {
    super.init(context);
    gpus = new GpuLaunches(context, getConf(), this);
    ExecutorAttributes.addTo(getConf());
  }

  /** The GPUs that a container may use; null if unknown. */
  GpuUse use(ContainerId id) {
    return gpus.use(id);
  }

  @Override
  public void writeLaunchEnv(OutputStream out, Map<String, String> environment, Map<Path, List<String>> resources,
      List<String> command, Path logDir, String user, String outFilename, LinkedHashSet<String> nmVars)
      throws IOException {
    gpus.visible(environment, nmVars);
    super.writeLaunchEnv(out, environment, resources, command, logDir, user, outFilename, nmVars);
  }

  @Override
  public int launchContainer(ContainerStartContext context) throws IOException, ConfigurationException {
    return gpus.launch(context.getContainer(), () -> super.launchContainer(context));
  }

  /** Of a container with a retry policy; unlike DefaultContainerExecutor's it does not call launchContainer. */
  @Override
  public int relaunchContainer(ContainerStartContext context) throws IOException, ConfigurationException {
    return gpus.launch(context.getContainer(), () -> super.relaunchContainer(context));
  }

  @Override
  public int reacquireContainer(ContainerReacquisitionContext context) throws IOException, InterruptedException {
    return gpus.reacquire(context.getContainerId(), () -> super.reacquireContainer(context));
  }
}
