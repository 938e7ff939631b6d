package isonomy.submarine;

import java.io.IOException;

/** A mistake that the user can correct: a one-line message without a stack trace; nothing was submitted. */
final class UserError extends IOException {
  private static final long serialVersionUID = 1L;

  UserError(String message) {
    super(asTyped(message));
  }

  UserError(String message, Throwable cause) {
    super(asTyped(message), cause);
  }

  /** Throws where this is wrong. */
  static void when(boolean wrong, String message) throws UserError {
    if (wrong) {
      throw new UserError(message);
    }
  }

  /** The stock command line takes options with one dash, people write two. */
  private static String asTyped(String message) {
    return message.replaceAll("(^|[ (])-(?=[a-z]{2})", "$1--");
  }
}
