package isonomy.submarine;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.submarine.client.cli.param.runjob.RunJobParameters;
import org.apache.submarine.client.cli.runjob.RunJobCli;
import org.apache.submarine.commons.runtime.ClientContext;
import org.apache.submarine.commons.runtime.JobMonitor;
import org.apache.submarine.commons.runtime.JobSubmitter;
import org.apache.submarine.commons.runtime.RuntimeFactory;
import org.apache.submarine.commons.runtime.fs.MemorySubmarineStorage;
import org.apache.submarine.commons.runtime.fs.SubmarineStorage;

/** The stock command line, up to the point where it hands its parameters to a runtime. */
final class StockCli {
  private StockCli() {
  }

  /** The options beside a name and paths. */
  static RunJobParameters parse(String... options) throws Exception {
    List<String> args = new ArrayList<>(List.of("-name", "digits", "-input_path", "/data", "-checkpoint_path",
        "hdfs://nn:8020/ckpt", "-saved_model_path", "hdfs://nn:8020/model"));
    args.addAll(List.of(options));
    return parseOnly(args.toArray(String[]::new));
  }

  static RunJobParameters parseOnly(String... args) throws Exception {
    IsonomyRuntimeFactory.registerGpuType();
    ClientContext context = new ClientContext();
    context.setYarnConfig(new Configuration(false));
    AtomicReference<RunJobParameters> seen = new AtomicReference<>();
    JobSubmitter submitter = holder -> {
      seen.set((RunJobParameters) holder.getParameters());
      return ApplicationId.newInstance(1, 1);
    };
    context.setRuntimeFactory(factory(context, submitter));
    new RunJobCli(context).run(args);
    return seen.get();
  }

  private static RuntimeFactory factory(ClientContext context, JobSubmitter submitter) {
    return new RuntimeFactory(context) {
      @Override
      protected JobSubmitter internalCreateJobSubmitter() {
        return submitter;
      }

      @Override
      protected JobMonitor internalCreateJobMonitor() {
        return new IsonomyJobMonitor(context);
      }

      @Override
      protected SubmarineStorage internalCreateSubmarineStorage() {
        return new MemorySubmarineStorage();
      }
    };
  }
}
