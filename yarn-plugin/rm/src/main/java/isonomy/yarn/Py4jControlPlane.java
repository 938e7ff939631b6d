package isonomy.yarn;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.hadoop.net.StandardSocketFactory;
import org.apache.hadoop.thirdparty.com.google.common.base.Throwables;
import py4j.CallbackClient;
import py4j.Gateway;
import py4j.Protocol;
import py4j.Py4JNetworkException;

/**
 * The control plane over py4j, as a client only, without a listening port. Each concurrent call has its own connection;
 * connections are opened on demand and closed when a call fails.
 */
final class Py4jControlPlane implements ControlPlane {
  private static final int CONNECT_MS = 2_000;
  /** py4j logs whole messages, which contain secrets. A strong reference, as the log manager's is weak. */
  private static final Logger PY4J_LOG = Logger.getLogger(CallbackClient.class.getPackageName());

  static {
    PY4J_LOG.setLevel(Level.OFF);
  }

  private final BridgeConfig config;
  private final int deadlineMs;
  private Gateway link;

  /** `deadlineMs`: how long one call may take. */
  Py4jControlPlane(BridgeConfig config, int deadlineMs) {
    this.config = config;
    this.deadlineMs = deadlineMs;
  }

  @Override
  public byte[] exchange(byte[] request) {
    Gateway used = link();
    try {
      Object proxy = used.createProxy(
          ControlPlane.class.getClassLoader(), new Class<?>[] {ControlPlane.class}, Protocol.ENTRY_POINT_OBJECT_ID);
      return ((ControlPlane) proxy).exchange(request);
    } catch (RuntimeException e) {
      drop(used);
      throw new BridgeException("no answer from the control plane at " + config.host + ":" + config.port
          + " (" + rootOf(e) + ")", e);
    }
  }

  private synchronized Gateway link() {
    if (link == null) {
      try {
        InetAddress address = InetAddress.getByName(config.host);
        link = new Gateway(null, new CallbackClient(
            config.port, address, config.token(), 0, TimeUnit.SECONDS, new NoDelay(), false, deadlineMs));
      } catch (IOException e) {
        throw new BridgeException(e.getMessage(), e);
      }
    }
    return link;
  }

  private synchronized void drop(Gateway failed) {
    if (link == failed) {
      link = null;
    }
    failed.getCallbackClient().shutdown();
  }

  @Override
  public synchronized void close() {
    if (link != null) {
      drop(link);
    }
  }

  /** The cause of a failed call in one line, without the sent message that py4j puts into its exceptions. */
  private String rootOf(Throwable e) {
    Throwable root = Throwables.getRootCause(e);
    if (root instanceof IOException) {
      String kind = root.getClass().getSimpleName();
      if (root.getMessage() != null && root.getMessage().startsWith("Authentication")) {
        return "it did not take the token in " + config.tokenFile
            + ": it is just ending, or that is not bridge.token_file of isonomy.yaml";
      }
      return root.getMessage() == null ? kind : root.getMessage().lines().findFirst().orElse(kind);
    }
    return root instanceof Py4JNetworkException ? "the connection was closed" : "the call was refused";
  }

  /** Sockets with TCP_NODELAY: Nagle's algorithm with delayed acknowledgements would cost 40 ms per call. */
  static final class NoDelay extends StandardSocketFactory {
    @Override
    public Socket createSocket(InetAddress host, int port) throws IOException {
      Socket socket = new Socket();
      socket.setTcpNoDelay(true);
      socket.connect(new InetSocketAddress(host, port), CONNECT_MS);
      socket.setSoTimeout(CONNECT_MS);
      return socket;
    }
  }
}
