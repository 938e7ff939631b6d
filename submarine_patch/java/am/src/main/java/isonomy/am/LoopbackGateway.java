package isonomy.am;

import java.io.IOException;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.security.SecureRandom;
import javax.net.ServerSocketFactory;
import py4j.GatewayServer;

/** A py4j server on a free port of the loopback interface, protected by a token. */
final class LoopbackGateway {
  private static final int TOKEN_BYTES = 32;

  private final GatewayServer server;
  private final String token = newToken();

  LoopbackGateway(Object entryPoint) {
    InetAddress loopback = InetAddress.getLoopbackAddress();
    server = new GatewayServer.GatewayServerBuilder(entryPoint).javaPort(0).javaAddress(loopback)
        .callbackClient(0, loopback, token).serverSocketFactory(new NoDelaySockets()).authToken(token).build();
    server.start();
  }

  int port() {
    return server.getListeningPort();
  }

  String token() {
    return token;
  }

  void close() {
    server.shutdown();
  }

  private static String newToken() {
    byte[] bytes = new byte[TOKEN_BYTES];
    new SecureRandom().nextBytes(bytes);
    return String.format("%0" + 2 * TOKEN_BYTES + "x", new BigInteger(1, bytes));
  }

  /** Nagle's algorithm with delayed acknowledgement costs some 40 ms for each larger message. */
  private static final class NoDelaySockets extends ServerSocketFactory {
    @Override
    public ServerSocket createServerSocket() throws IOException {
      return new NoDelayServerSocket(0, 50, null);
    }

    @Override
    public ServerSocket createServerSocket(int port) throws IOException {
      return createServerSocket(port, 50);
    }

    @Override
    public ServerSocket createServerSocket(int port, int backlog) throws IOException {
      return createServerSocket(port, backlog, InetAddress.getLoopbackAddress());
    }

    @Override
    public ServerSocket createServerSocket(int port, int backlog, InetAddress address) throws IOException {
      return new NoDelayServerSocket(port, backlog, address);
    }
  }

  private static final class NoDelayServerSocket extends ServerSocket {
    NoDelayServerSocket(int port, int backlog, InetAddress address) throws IOException {
      super();
      if (address != null) {
        bind(new java.net.InetSocketAddress(address, port), backlog);
      }
    }

    @Override
    public Socket accept() throws IOException {
      Socket socket = super.accept();
      socket.setTcpNoDelay(true);
      return socket;
    }
  }
}
