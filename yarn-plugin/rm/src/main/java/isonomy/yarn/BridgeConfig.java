package isonomy.yarn;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/** How the plugin reaches the control plane: the isonomy.* keys of yarn-site.xml. */
final class BridgeConfig {
  private static final String HOST = "isonomy.bridge.host";
  private static final String PORT = "isonomy.bridge.port";
  private static final String TOKEN_FILE = "isonomy.bridge.token-file";
  private static final String QUEUE_SIZE = "isonomy.bridge.queue-size";
  private static final Set<PosixFilePermission> OWNER_ONLY =
      Set.of(PosixFilePermission.OWNER_READ, PosixFilePermission.OWNER_WRITE);

  final String host;
  final int port;
  final Path tokenFile;
  final int queueSize;

  /** Throws IllegalArgumentException for the first mistake. */
  BridgeConfig(Configuration conf) {
    host = conf.getTrimmed(HOST, "127.0.0.1");
    tokenFile = Path.of(conf.getTrimmed(TOKEN_FILE, ""));
    if (tokenFile.toString().isEmpty()) {
      throw new IllegalArgumentException(
          "yarn-site.xml: " + TOKEN_FILE + " is not set; name the file that `isonomy serve` keeps its bridge token in");
    }
    port = conf.getInt(PORT, 26500);
    if (port < 1 || port > 65535) {
      throw new IllegalArgumentException("yarn-site.xml: " + PORT + " is no port: " + port);
    }
    queueSize = conf.getInt(QUEUE_SIZE, 100_000);
    if (queueSize < 1) {
      throw new IllegalArgumentException("yarn-site.xml: " + QUEUE_SIZE + " must be at least 1, not " + queueSize);
    }
  }

  /** Why a mode cannot be in force with this configuration; empty where it can. */
  static String hindrance(Managed wanted, Configuration conf) {
    if (wanted.places() && !ResourceUtils.getResourceTypes().containsKey(Gpus.RESOURCE)) {
      return "resource-types.xml: yarn.resource-types must name " + Gpus.RESOURCE;
    }
    try {
      new BridgeConfig(conf);
      return "";
    } catch (IllegalArgumentException e) {
      return wanted.isOn() ? e.getMessage() : "";
    }
  }

  /** The shared secret; read at each call, because the control plane may create it late. */
  String token() throws IOException {
    if (!Files.isReadable(tokenFile)) {
      throw new IOException(TOKEN_FILE + ": " + tokenFile + " cannot be read; has the control plane been started?");
    }
    if (!OWNER_ONLY.containsAll(Files.getPosixFilePermissions(tokenFile))) {
      throw new IOException(TOKEN_FILE + ": others may read " + tokenFile + "; set its mode to 0600");
    }
    String token = Files.readString(tokenFile).strip();
    if (!token.matches("[0-9a-f]{64}")) {
      throw new IOException(TOKEN_FILE + ": " + tokenFile + " does not hold 64 hexadecimal characters");
    }
    return token;
  }
}
