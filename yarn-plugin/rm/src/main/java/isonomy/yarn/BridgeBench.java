package isonomy.yarn;

import com.google.protobuf.ByteString;
import isonomy.wire.v1.Query;
import isonomy.wire.v1.Request;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.file.Path;
import java.util.StringJoiner;

/**
 * Measures the bridge from this side: round trips with a control plane that echoes, and for comparison with a bare
 * TCP echo. Prints for each size one line: kind, bytes, and the nanoseconds of each round trip.
 */
final class BridgeBench {
  private static final int[] SIZES = {100, 100_000};
  private static final int WARM_UP = 300;
  private static final int ROUND_TRIPS = 500;

  private interface RoundTrip {
    void run() throws IOException;
  }

  private BridgeBench() {}

  /** Arguments: host, port of the bridge, token file, port of the bare echo. */
  public static void main(String[] args) throws IOException {
    BridgeConfig config = new BridgeConfig(args[0], Integer.parseInt(args[1]), Path.of(args[2]), 1);
    try (Py4jControlPlane bridge = new Py4jControlPlane(config, Bridge.EXCHANGE_MS)) {
      for (int size : SIZES) {
        byte[] request = Request.newBuilder().setId(1)
            .setQuery(Query.newBuilder().setBody(ByteString.copyFrom(new byte[size]))).build().toByteArray();
        measure("bridge", size, () -> bridge.exchange(request));
      }
    }
    try (Socket socket = new Socket(args[0], Integer.parseInt(args[3]))) {
      socket.setTcpNoDelay(true);
      OutputStream out = socket.getOutputStream();
      DataInputStream in = new DataInputStream(socket.getInputStream());
      for (int size : SIZES) {
        byte[] message = new byte[size];
        measure("tcp", size, () -> {
          out.write(message);
          in.readFully(message);
        });
      }
    }
  }

  private static void measure(String kind, int size, RoundTrip roundTrip) throws IOException {
    for (int i = 0; i < WARM_UP; i++) {
      roundTrip.run();
    }
    StringJoiner times = new StringJoiner(" ", kind + " " + size + " ", "");
    for (int i = 0; i < ROUND_TRIPS; i++) {
      long begin = System.nanoTime();
      roundTrip.run();
      times.add(String.valueOf(System.nanoTime() - begin));
    }
    System.out.println(times);
  }
}
