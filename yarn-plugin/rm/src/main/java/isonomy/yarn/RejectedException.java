package isonomy.yarn;

/** A directive cannot be carried out; the message tells the control plane why. */
final class RejectedException extends Exception {
  private static final long serialVersionUID = 1L;

  RejectedException(String reason) {
    super(reason);
  }
}
