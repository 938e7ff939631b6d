package isonomy.am;

import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import isonomy.wire.v1.AmBoard;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Serves TensorBoard, which listens on loopback in the application master's container, below the app's page.
 *
 * <p>YARN's proxy passes only GET, but TensorBoard requests curves by POST. A script that is added to its page turns
 * such a request into a GET with the form as {@value #POSTED} in the query, in base64 because the proxy takes braces
 * for a template; this class turns it back into a POST.
 */
final class Board {
  static final String PATH = "/tensorboard/";
  static final String SCRIPT = "isonomy.js";
  /** As in the script. */
  static final String POSTED = "_isonomy_post=";
  private static final int CONNECT_MS = 2_000;
  private static final int READ_MS = 30_000;
  private static final int PAGE_MAX = 1 << 20;
  private static final List<String> PASSED_ON = List.of("Content-Type", "Content-Security-Policy", "Cache-Control",
      "Expires", "X-Content-Type-Options");

  private volatile AmBoard board = AmBoard.getDefaultInstance();

  /** Sets where TensorBoard listens. */
  void at(AmBoard place) {
    board = place;
  }

  /** Answers a GET or HEAD below {@link #PATH} from a client that may read the app's page. */
  void answer(HttpExchange http) throws IOException {
    if (http.getRequestURI().getPath().equals(PATH + SCRIPT)) {
      http.getResponseHeaders().set("Content-Type", "text/javascript; charset=utf-8");
      try (InputStream script = Board.class.getResourceAsStream(SCRIPT)) {
        send(http, 200, script.readAllBytes());
      }
      return;
    }
    if (board.getPort() == 0) {
      http.getResponseHeaders().set("Content-Type", "text/plain; charset=utf-8");
      send(http, 404, "TensorBoard does not run: submit with --tensorboard\n".getBytes(StandardCharsets.UTF_8));
      return;
    }
    HttpURLConnection there;
    int status;
    try {
      there = ask(http);
      status = there.getResponseCode();
    } catch (IOException e) {
      http.getResponseHeaders().set("Content-Type", "text/plain; charset=utf-8");
      send(http, 502, "TensorBoard does not answer\n".getBytes(StandardCharsets.UTF_8));
      return;
    }
    Headers headers = http.getResponseHeaders();
    headers.set("X-Content-Type-Options", "nosniff");
    for (String name : PASSED_ON) {
      String value = there.getHeaderField(name);
      if (value != null) {
        headers.set(name, value);
      }
    }
    try (InputStream in = status < 400 ? there.getInputStream() : there.getErrorStream()) {
      String type = String.valueOf(there.getContentType());
      if (in == null || http.getRequestMethod().equals("HEAD")) {
        http.sendResponseHeaders(status, -1);
      } else if (type.startsWith("text/html")) {
        send(http, status, withScript(in.readNBytes(PAGE_MAX)));
      } else {
        http.sendResponseHeaders(status, 0);
        try (OutputStream out = http.getResponseBody()) {
          in.transferTo(out);
        }
      }
    } finally {
      there.disconnect();
    }
  }

  private HttpURLConnection ask(HttpExchange http) throws IOException {
    String query = http.getRequestURI().getRawQuery();
    List<String> pairs = query == null ? List.of() : Arrays.asList(query.split("&"));
    String form = pairs.stream().filter(pair -> pair.startsWith(POSTED)).findFirst().orElse(null);
    String rest = pairs.stream().filter(pair -> !pair.startsWith(POSTED)).collect(Collectors.joining("&"));
    String path = board.getBelow() + http.getRequestURI().getRawPath() + (rest.isEmpty() ? "" : "?" + rest);
    HttpURLConnection there = (HttpURLConnection) new URL("http", "127.0.0.1", board.getPort(), path).openConnection();
    there.setConnectTimeout(CONNECT_MS);
    there.setReadTimeout(READ_MS);
    there.setInstanceFollowRedirects(false);
    if (form != null) {
      there.setRequestMethod("POST");
      there.setDoOutput(true);
      there.setRequestProperty("Content-Type", "application/x-www-form-urlencoded");
      try (OutputStream out = there.getOutputStream()) {
        out.write(decoded(form.substring(POSTED.length())));
      }
    }
    return there;
  }

  private static byte[] decoded(String form) throws IOException {
    try {
      return Base64.getUrlDecoder().decode(form);
    } catch (IllegalArgumentException e) {
      throw new IOException("no base64: " + e.getMessage(), e);
    }
  }

  /** The page with the script before all others; its URL is relative because the page is below YARN's proxy. */
  static byte[] withScript(byte[] page) {
    String text = new String(page, StandardCharsets.UTF_8);
    int head = text.indexOf("<head>");
    int at = head < 0 ? 0 : head + "<head>".length();
    return (text.substring(0, at) + "<script src=\"" + SCRIPT + "\"></script>" + text.substring(at))
        .getBytes(StandardCharsets.UTF_8);
  }

  private static void send(HttpExchange http, int status, byte[] body) throws IOException {
    http.sendResponseHeaders(status, body.length);
    http.getResponseBody().write(body);
  }
}
