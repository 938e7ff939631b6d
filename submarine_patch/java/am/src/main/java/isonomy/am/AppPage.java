package isonomy.am;

import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import isonomy.wire.v1.AmBoard;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Predicate;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.ThreadFactoryBuilder;

/**
 * The tracking URL of an app: a small page that sends the browser to the app's page in the ResourceManager.
 *
 * <p>YARN's proxy fetches it without the user's ticket, so an HTTP redirect would make the proxy fetch the app's page
 * as an unknown user; a link and a meta refresh make the browser go there itself. TensorBoard is below it, if the job
 * has one ({@link Board}). Clients that are not admitted get 403.
 */
final class AppPage {
  static final String UI = "/ws/v1/cluster/isonomy/ui/app/";
  private static final int THREADS = 4;
  private static final String POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'";

  private final HttpServer server;
  private final ExecutorService threads = Executors.newFixedThreadPool(THREADS,
      new ThreadFactoryBuilder().setDaemon(true).setNameFormat("app-page").build());
  private final Predicate<InetAddress> admitted;
  private final byte[] page;
  private final Board board = new Board();

  private AppPage(InetAddress address, String target, Predicate<InetAddress> admitted) throws IOException {
    // Timeouts for incomplete requests and unread answers; the JDK's server has no other setting for them.
    System.setProperty("sun.net.httpserver.maxReqTime", "10");
    System.setProperty("sun.net.httpserver.maxRspTime", "10");
    this.admitted = admitted;
    this.page = html(target).getBytes(StandardCharsets.UTF_8);
    this.server = HttpServer.create(new InetSocketAddress(address, 0), 0);
    server.setExecutor(threads);
    server.createContext("/", this::answer);
  }

  /** Starts to listen on a free port of this address. */
  static AppPage start(InetAddress address, String target, Predicate<InetAddress> admitted) throws IOException {
    AppPage page = new AppPage(address, target, admitted);
    page.server.start();
    return page;
  }

  /** Adds TensorBoard, which listens there, to the page. */
  void board(AmBoard place) {
    board.at(place);
  }

  int port() {
    return server.getAddress().getPort();
  }

  void close() {
    server.stop(0);
    threads.shutdownNow();
  }

  private void answer(HttpExchange http) throws IOException {
    try {
      boolean reads = http.getRequestMethod().equals("GET") || http.getRequestMethod().equals("HEAD");
      int status = !admitted.test(http.getRemoteAddress().getAddress()) ? 403 : reads ? 200 : 405;
      if (status == 200 && http.getRequestURI().getPath().startsWith(Board.PATH)) {
        board.answer(http);
        return;
      }
      Headers headers = http.getResponseHeaders();
      headers.set("Content-Type", "text/html; charset=utf-8");
      headers.set("Content-Security-Policy", POLICY);
      headers.set("X-Content-Type-Options", "nosniff");
      headers.set("Cache-Control", "no-store");
      if (status != 200 || http.getRequestMethod().equals("HEAD")) {
        http.sendResponseHeaders(status, -1);
        return;
      }
      http.sendResponseHeaders(status, page.length);
      http.getResponseBody().write(page);
    } finally {
      http.close();
    }
  }

  static String html(String target) {
    String safe = target.replace("&", "&amp;").replace("<", "&lt;").replace("\"", "&quot;");
    return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Isonomy</title>"
        + "<meta http-equiv=\"refresh\" content=\"0; url=" + safe + "\"></head>\n"
        + "<body><p><a href=\"" + safe + "\">This app's page</a></p></body></html>\n";
  }
}
