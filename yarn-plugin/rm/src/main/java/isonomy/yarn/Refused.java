package isonomy.yarn;

/** A directive cannot be carried out; the message tells the control plane why. */
final class Refused extends Exception {
  private static final long serialVersionUID = 1L;

  Refused(String reason) {
    super(reason);
  }
}
