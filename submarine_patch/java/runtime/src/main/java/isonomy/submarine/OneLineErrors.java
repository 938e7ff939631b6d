package isonomy.submarine;

import java.io.IOException;
import java.net.UnknownHostException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.commons.cli.ParseException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.submarine.commons.runtime.exception.SubmarineException;

/**
 * Prints the exception that ends the command line as one line.
 *
 * <p>The stock command line lets every exception escape {@code main}, which shows users a stack trace. The exit
 * status is 2 for a mistake in the options, else 1 as usual. Exceptions that no user can cause keep their trace.
 */
final class OneLineErrors implements Thread.UncaughtExceptionHandler {
  private static final int USAGE_STATUS = 2;
  /** What Hadoop's RPC says of a daemon that is down: a NameNode, or the ResourceManager. */
  private static final Pattern CALL = Pattern.compile(
      "Call From \\S+ to (\\S+) failed on (connection|socket timeout) exception.*");

  static void install() {
    if (Thread.getDefaultUncaughtExceptionHandler() == null) {
      Thread.setDefaultUncaughtExceptionHandler(new OneLineErrors());
    }
  }

  @Override
  public void uncaughtException(Thread thread, Throwable error) {
    if (isExpected(error)) {
      System.err.println("submarine: " + oneLine(error));
      if (error instanceof UserError || error instanceof ParseException) {
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(USAGE_STATUS);
      }
    } else {
      error.printStackTrace();
    }
  }

  private static boolean isExpected(Throwable error) {
    return error instanceof IOException || error instanceof YarnException
        || error instanceof SubmarineException || error instanceof ParseException
        || error instanceof IllegalArgumentException;
  }

  /** The message without line breaks and without a server's stack trace; the class name if there is no message. */
  static String oneLine(Throwable error) {
    String message = error.getMessage();
    if (message == null || message.isBlank()) {
      return error.getClass().getName();
    }
    String line = message.strip().split("\\R\\s+at ", 2)[0].replaceAll("\\s*\\R\\s*", " ");
    if (error instanceof UnknownHostException) {
      return "no host " + line + " is known here";
    }
    Matcher called = CALL.matcher(line);
    if (called.matches()) {
      return called.group(1) + " cannot be reached; is HDFS (core-site.xml) or YARN (yarn-site.xml) up there?";
    }
    boolean homeless = line.matches("Permission denied: user=\\S+ access=WRITE, inode=\"/user\".*");
    return homeless ? line + "; HDFS has no home folder /user/NAME for you: an admin makes it" : line;
  }
}
