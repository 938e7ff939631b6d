package isonomy.submarine;

import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalTime;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.Uninterruptibles;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.submarine.commons.runtime.ClientContext;
import org.apache.submarine.commons.runtime.JobMonitor;
import org.apache.submarine.commons.runtime.api.JobState;
import org.apache.submarine.commons.runtime.api.JobStatus;
import org.apache.submarine.commons.runtime.exception.SubmarineException;
import org.apache.submarine.commons.runtime.fs.StorageKeyConstants;

/** Follows a job by name, even if another process submitted it. */
final class IsonomyJobMonitor extends JobMonitor {
  private static final long POLL_S = 2;
  /** How long to wait for a ResourceManager that is away (restart, failover). */
  private static final Duration AWAY_MAX = Duration.ofMinutes(15);

  IsonomyJobMonitor(ClientContext context) {
    super(context);
  }

  @Override
  public JobStatus getTrainingJobStatus(String jobName) throws IOException, YarnException {
    JobStatus status = new JobStatus();
    status.setJobName(jobName);
    status.setState(stateOf(clientContext.getOrCreateYarnClient().getApplicationReport(applicationOf(jobName))));
    status.setComponentStatus(new ArrayList<>());
    return status;
  }

  /** Prints each change of the status, and ends with an exception if the job did not succeed. */
  @Override
  public void waitTrainingFinal(String jobName) throws IOException, YarnException, SubmarineException {
    ApplicationId app = applicationOf(jobName);
    String printed = "";
    Instant answered = Instant.now();
    while (true) {
      String line = "the ResourceManager does not answer, waiting";
      ApplicationReport report = null;
      try {
        report = clientContext.getOrCreateYarnClient().getApplicationReport(app);
        answered = Instant.now();
        line = line(jobName, report);
      } catch (IOException e) {
        if (Duration.between(answered, Instant.now()).compareTo(AWAY_MAX) > 0) {
          throw e;
        }
      }
      if (!line.equals(printed)) {
        System.err.println(LocalTime.now().truncatedTo(ChronoUnit.SECONDS) + " " + line);
        printed = line;
      }
      if (report != null && JobState.isFinal(stateOf(report))) {
        end(report);
        return;
      }
      Uninterruptibles.sleepUninterruptibly(POLL_S, TimeUnit.SECONDS);
    }
  }

  private static void end(ApplicationReport report) throws SubmarineException {
    JobState state = stateOf(report);
    if (state != JobState.SUCCEEDED) {
      String diagnostics = diagnostics(report);
      throw new SubmarineException((state == JobState.KILLED ? "Job killed" : "Job failed")
          + (diagnostics.isEmpty() ? "" : ": " + diagnostics));
    }
  }

  /** The application's state, with its progress, or at its end what it says. */
  private String line(String jobName, ApplicationReport report) {
    JobState state = stateOf(report);
    YarnApplicationState now = report.getYarnApplicationState();
    String more = state == JobState.SUCCEEDED ? diagnostics(report)
        : now == YarnApplicationState.RUNNING ? progress(report.getApplicationId()) : "";
    return jobName + " " + report.getApplicationId() + " " + (JobState.isFinal(state) ? state : now)
        + (more.isEmpty() ? "" : ": " + more);
  }

  /** Why the application ended as it did; may be empty. */
  private static String diagnostics(ApplicationReport report) {
    return report.getDiagnostics() == null ? "" : report.getDiagnostics().strip();
  }

  private static JobState stateOf(ApplicationReport report) {
    return switch (report.getYarnApplicationState()) {
      case FINISHED -> report.getFinalApplicationStatus() == FinalApplicationStatus.SUCCEEDED
          ? JobState.SUCCEEDED : JobState.FAILED;
      case FAILED -> JobState.FAILED;
      case KILLED -> JobState.KILLED;
      default -> JobState.RUNNING;
    };
  }

  /** A line of progress; empty on an error, because the control plane may be away. */
  private String progress(ApplicationId app) {
    try {
      return new RmRest(clientContext.getYarnConfig()).get("explain?app=" + app).path("line").asText("");
    } catch (IOException e) {
      return "";
    }
  }

  private ApplicationId applicationOf(String jobName) throws IOException {
    String id = clientContext.getRuntimeFactory().getSubmarineStorage().getJobInfoByName(jobName)
        .get(StorageKeyConstants.APPLICATION_ID);
    return ApplicationId.fromString(id);
  }
}
