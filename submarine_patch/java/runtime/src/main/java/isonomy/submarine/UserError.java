package isonomy.submarine;

import java.io.IOException;

/** A mistake that the user can correct: a one-line message without a stack trace; nothing was submitted. */
final class UserError extends IOException {
  private static final long serialVersionUID = 1L;

  UserError(String message) {
    super(message);
  }

  UserError(String message, Throwable cause) {
    super(message, cause);
  }
}
