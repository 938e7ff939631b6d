package isonomy.submarine;

import java.io.PrintStream;
import java.time.LocalTime;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.submarine.commons.runtime.api.JobState;
import org.apache.submarine.commons.runtime.api.JobStatus;

/** The state of the application, with one line of progress. */
final class IsonomyJobStatus extends JobStatus {
  private final String line;
  private final String diagnostics;

  IsonomyJobStatus(String jobName, ApplicationReport report, String progress) {
    setJobName(jobName);
    setState(stateOf(report));
    setComponentStatus(new ArrayList<>());
    String states = (JobState.isFinal(getState()) ? getState() : report.getYarnApplicationState()).toString();
    diagnostics = report.getDiagnostics() == null ? "" : report.getDiagnostics().strip();
    String more = getState() == JobState.SUCCEEDED ? diagnostics : progress;
    line = jobName + " " + report.getApplicationId() + " " + states + (more.isEmpty() ? "" : ": " + more);
  }

  /** The status as one line without a time, to compare with the last one. */
  String line() {
    return line;
  }

  /** Why the application ended as it did; may be empty. */
  String diagnostics() {
    return diagnostics;
  }

  @Override
  public void nicePrint(PrintStream out) {
    out.println(LocalTime.now().truncatedTo(ChronoUnit.SECONDS) + " " + line);
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
}
