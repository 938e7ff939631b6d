package isonomy.yarn;

/** A directive cannot be carried out; the message tells the control plane why. */
final class RejectedException extends Exception {
  private static final long serialVersionUID = 1L;
  private final boolean machineAtFault;

  RejectedException(String reason) {
    this(reason, false);
  }

  private RejectedException(String reason, boolean machineAtFault) {
    super(reason);
    this.machineAtFault = machineAtFault;
  }

  /** A refusal that any application would get; what an application can bring about itself is none. */
  static RejectedException ofMachine(String reason) {
    return new RejectedException(reason, true);
  }

  boolean machineAtFault() {
    return machineAtFault;
  }
}
