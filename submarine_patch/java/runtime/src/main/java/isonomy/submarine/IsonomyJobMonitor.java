package isonomy.submarine;

import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
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
  private static final Duration POLL = Duration.ofSeconds(2);
  /** How long to wait for a ResourceManager that is away (restart, failover). */
  private static final Duration AWAY_MAX = Duration.ofMinutes(15);

  IsonomyJobMonitor(ClientContext context) {
    super(context);
  }

  @Override
  public JobStatus getTrainingJobStatus(String jobName) throws IOException, YarnException {
    return status(jobName, applicationOf(jobName));
  }

  /** Prints each change of the status, and ends with an exception if the job did not succeed. */
  @Override
  public void waitTrainingFinal(String jobName) throws IOException, YarnException, SubmarineException {
    ApplicationId app = applicationOf(jobName);
    String printed = "";
    Instant answered = Instant.now();
    while (true) {
      IsonomyJobStatus status = null;
      try {
        status = status(jobName, app);
        answered = Instant.now();
      } catch (IOException e) {
        if (Duration.between(answered, Instant.now()).compareTo(AWAY_MAX) > 0) {
          throw e;
        }
      }
      String line = status == null ? "the ResourceManager does not answer, waiting" : status.line();
      if (!line.equals(printed)) {
        if (status == null) {
          System.err.println(line);
        } else {
          status.nicePrint(System.err);
        }
        printed = line;
      }
      if (status != null && JobState.isFinal(status.getState())) {
        end(status);
        return;
      }
      pause();
    }
  }

  private static void end(IsonomyJobStatus status) throws SubmarineException {
    if (status.getState() == JobState.SUCCEEDED) {
      return;
    }
    String what = status.getState() == JobState.KILLED ? "Job killed" : "Job failed";
    throw new SubmarineException(status.diagnostics().isEmpty() ? what : what + ": " + status.diagnostics());
  }

  private IsonomyJobStatus status(String jobName, ApplicationId app) throws IOException, YarnException {
    ApplicationReport report = clientContext.getOrCreateYarnClient().getApplicationReport(app);
    boolean running = report.getYarnApplicationState() == YarnApplicationState.RUNNING;
    return new IsonomyJobStatus(jobName, report, running ? progress(app) : "");
  }

  /** A line of progress; empty on an error, because the control plane may be away. */
  private String progress(ApplicationId app) {
    try {
      return new RmRest(clientContext.getYarnConfig()).get("explain", app).path("line").asText("");
    } catch (IOException e) {
      return "";
    }
  }

  private ApplicationId applicationOf(String jobName) throws IOException {
    String id = clientContext.getRuntimeFactory().getSubmarineStorage().getJobInfoByName(jobName)
        .get(StorageKeyConstants.APPLICATION_ID);
    return ApplicationId.fromString(id);
  }

  private static void pause() throws IOException {
    try {
      Thread.sleep(POLL.toMillis());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while waiting for the job", e);
    }
  }
}
