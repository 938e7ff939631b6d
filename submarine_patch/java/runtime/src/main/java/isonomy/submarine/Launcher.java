package isonomy.submarine;

import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import org.apache.submarine.client.cli.Cli;

/**
 * The stock command line with Hadoop's configuration folder (system property {@code isonomy.conf}) beside the class path.
 *
 * <p>The JVM reads classes from an archive only if no folder is on its class path; Hadoop looks for its files with the
 * thread's context class loader.
 */
public final class Launcher {
  private Launcher() {
  }

  /** Runs the stock command line. */
  public static void main(String[] arguments) throws Exception {
    URL folder = Path.of(System.getProperty("isonomy.conf")).toUri().toURL();
    ClassLoader classPath = Launcher.class.getClassLoader();
    Thread.currentThread().setContextClassLoader(new URLClassLoader(new URL[] {folder}, classPath));
    Cli.main(arguments);
  }
}
