package isonomy.am;

import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;

/**
 * How this attempt ends.
 *
 * @param status what the ResourceManager is told; null: nothing, so that another attempt may follow
 * @param exitCode of this process
 */
record Outcome(FinalApplicationStatus status, String message, String trackingUrl, int exitCode) {
  /** EX_SOFTWARE: used where the Agent's own exit code would not tell of a failure. */
  static final int SOFTWARE = 70;

  static Outcome finished(boolean succeeded, String message, String trackingUrl) {
    FinalApplicationStatus status = succeeded ? FinalApplicationStatus.SUCCEEDED : FinalApplicationStatus.FAILED;
    return new Outcome(status, message, trackingUrl, 0);
  }

  /** The attempt fails; YARN shows the end of standard error with it. */
  static Outcome attemptFailed(String message, int exitCode) {
    return new Outcome(null, message, "", exitCode);
  }
}
