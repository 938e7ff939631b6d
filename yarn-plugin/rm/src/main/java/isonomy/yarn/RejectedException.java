package isonomy.yarn;

/** A directive cannot be carried out; the message tells the control plane why. */
final class RejectedException extends Exception {
  private static final long serialVersionUID = 1L;
  final boolean machineAtFault;
  final boolean excluded;

  RejectedException(String reason) {
    this(reason, false, false);
  }

  private RejectedException(String reason, boolean machineAtFault, boolean excluded) {
    super(reason);
    this.machineAtFault = machineAtFault;
    this.excluded = excluded;
  }

  /** A refusal that any application would get; what an application can bring about itself is none. */
  static RejectedException ofMachine(String reason) {
    return new RejectedException(reason, true, false);
  }

  /** A refusal that would come again at once, as the application excludes the machine. */
  static RejectedException excluded(String reason) {
    return new RejectedException(reason, false, true);
  }
}
