package isonomy.yarn;

/** The control plane could not be reached or could not answer; the message says why in one line. */
final class BridgeException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  BridgeException(String message, Throwable cause) {
    super(message, cause);
  }

  BridgeException(String message) {
    super(message);
  }
}
