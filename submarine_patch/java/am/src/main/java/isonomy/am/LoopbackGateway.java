package isonomy.am;

import java.math.BigInteger;
import java.net.InetAddress;
import java.net.SocketException;
import java.security.SecureRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import py4j.DefaultGatewayServerListener;
import py4j.GatewayServer;
import py4j.Py4JServerConnection;

/** A py4j server on a free port of the loopback interface, protected by a token. */
final class LoopbackGateway {
  private static final Logger LOG = LoggerFactory.getLogger(LoopbackGateway.class);

  final String token = String.format("%064x", new BigInteger(256, new SecureRandom()));
  private final GatewayServer server;

  LoopbackGateway(Object entryPoint) {
    InetAddress loopback = InetAddress.getLoopbackAddress();
    server = new GatewayServer.GatewayServerBuilder(entryPoint).javaPort(0).javaAddress(loopback)
        .callbackClient(0, loopback, token).authToken(token).build();
    server.addListener(new NoDelay());
    server.start();
  }

  int port() {
    return server.getListeningPort();
  }

  void close() {
    server.shutdown();
  }

  /** Nagle's algorithm with delayed acknowledgement costs some 40 ms for each larger message. */
  private static final class NoDelay extends DefaultGatewayServerListener {
    @Override
    public void connectionStarted(Py4JServerConnection connection) {
      try {
        connection.getSocket().setTcpNoDelay(true);
      } catch (SocketException e) {
        LOG.debug("closed already", e);
      }
    }
  }
}
