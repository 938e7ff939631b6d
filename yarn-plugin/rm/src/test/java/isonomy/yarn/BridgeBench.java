package isonomy.yarn;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.StringJoiner;
import org.apache.hadoop.conf.Configuration;

/**
 * Measures the bridge from this side: round trips with a control plane that echoes, and for comparison with a bare
 * TCP echo. Prints two lines for each request: kind, name of its file, and the nanoseconds of each round trip.
 *
 * <p>Runs against the jar that is shipped, whose protobuf is relocated, so requests come ready from files.
 */
final class BridgeBench {
  private static final int WARM_UP = 300;
  private static final int ROUND_TRIPS = 500;

  private interface RoundTrip {
    void run() throws IOException;
  }

  private BridgeBench() {}

  /** Arguments: host, port of the bridge, token file, port of the bare echo, files with one request each. */
  public static void main(String[] args) throws IOException {
    Configuration conf = new Configuration(false);
    conf.set("isonomy.bridge.host", args[0]);
    conf.set("isonomy.bridge.port", args[1]);
    conf.set("isonomy.bridge.token-file", args[2]);
    try (Py4jControlPlane bridge = new Py4jControlPlane(new BridgeConfig(conf), Bridge.EXCHANGE_MS);
        Socket socket = new Socket(args[0], Integer.parseInt(args[3]))) {
      socket.setTcpNoDelay(true);
      OutputStream out = socket.getOutputStream();
      DataInputStream in = new DataInputStream(socket.getInputStream());
      for (int i = 4; i < args.length; i++) {
        String name = Path.of(args[i]).getFileName().toString();
        byte[] request = Files.readAllBytes(Path.of(args[i]));
        measure("bridge", name, () -> {
          byte[] answer = bridge.exchange(request);
          if (answer.length < request.length) {
            throw new IOException("an answer of " + answer.length + " bytes to " + request.length);
          }
        });
        byte[] message = request.clone();
        measure("tcp", name, () -> {
          out.write(message);
          in.readFully(message);
        });
      }
    }
  }

  private static void measure(String kind, String name, RoundTrip roundTrip) throws IOException {
    for (int i = 0; i < WARM_UP; i++) {
      roundTrip.run();
    }
    StringJoiner times = new StringJoiner(" ", kind + " " + name + " ", "");
    for (int i = 0; i < ROUND_TRIPS; i++) {
      long begin = System.nanoTime();
      roundTrip.run();
      times.add(String.valueOf(System.nanoTime() - begin));
    }
    System.out.println(times);
  }
}
