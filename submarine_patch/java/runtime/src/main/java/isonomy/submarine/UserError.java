package isonomy.submarine;

import java.io.IOException;

/** A mistake that the user can put right: one clear line, no stack trace. Nothing was submitted. */
final class UserError extends IOException {
  private static final long serialVersionUID = 1L;

  UserError(String message) {
    super(message);
  }

  UserError(String message, Throwable cause) {
    super(message, cause);
  }
}
