package isonomy.am;

import isonomy.wire.v1.AmFinish;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;

/** How this attempt ends. */
final class Outcome {
  /** EX_SOFTWARE: used if the Agent's own exit code does not show the failure. */
  static final int SOFTWARE = 70;

  /** The status to report to the ResourceManager; null: none, so that another attempt may follow. */
  final FinalApplicationStatus status;
  final String message;
  final String trackingUrl;
  /** The exit code of this process. */
  final int exitCode;

  private Outcome(FinalApplicationStatus status, String message, String trackingUrl, int exitCode) {
    this.status = status;
    this.message = message;
    this.trackingUrl = trackingUrl;
    this.exitCode = exitCode;
  }

  static Outcome finished(AmFinish finish) {
    FinalApplicationStatus unlucky = finish.getKilled() ? FinalApplicationStatus.KILLED : FinalApplicationStatus.FAILED;
    FinalApplicationStatus status = finish.getSucceeded() ? FinalApplicationStatus.SUCCEEDED : unlucky;
    return new Outcome(status, finish.getMessage(), finish.getTrackingUrl(), 0);
  }

  /** The attempt fails; YARN shows the end of standard error with it. */
  static Outcome attemptFailed(String message, int exitCode) {
    return new Outcome(null, message, "", exitCode);
  }
}
