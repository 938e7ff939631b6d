package isonomy.am;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import isonomy.wire.v1.AmBoard;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.junit.jupiter.api.Test;

class AppPageTest {
  private static final ApplicationId APP = ApplicationId.newInstance(1, 1);

  @Test
  void theProxyGetsAPageThatSendsTheBrowserOnAndIsNoRedirectItself() throws Exception {
    AppPage page = AppPage.start(InetAddress.getLoopbackAddress(), ProxyHosts.pageOf(APP, new Configuration()),
        from -> true);
    try {
      HttpURLConnection http = open(page, "GET");
      assertEquals(200, http.getResponseCode());
      assertEquals("nosniff", http.getHeaderField("X-Content-Type-Options"));
      assertTrue(http.getHeaderField("Content-Security-Policy").startsWith("default-src 'none'"));
      String text = new String(http.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
      assertTrue(text.contains("content=\"0; url=/ws/v1/cluster/isonomy/ui/app/" + APP + "\""), text);
      assertTrue(text.contains("<a href=\"/ws/v1/cluster/isonomy/ui/app/" + APP + "\">"), text);
      assertEquals(405, open(page, "POST").getResponseCode());
    } finally {
      page.close();
    }
  }

  @Test
  void whoeverIsNotTheProxyIsRefused() throws Exception {
    AppPage page = AppPage.start(InetAddress.getLoopbackAddress(), "/x", from -> false);
    try {
      assertEquals(403, open(page, "GET").getResponseCode());
    } finally {
      page.close();
    }
  }

  @Test
  void theHostsAreThoseOfYarnsOwnFilter() throws Exception {
    Configuration conf = new YarnConfiguration();
    conf.set(YarnConfiguration.RM_WEBAPP_ADDRESS, "10.1.2.3:8088");
    InetAddress rm = InetAddress.getByName("10.1.2.3");
    InetAddress proxy = InetAddress.getByName("10.1.2.4");
    assertTrue(ProxyHosts.of(conf).test(rm));
    assertFalse(ProxyHosts.of(conf).test(proxy));
    assertFalse(ProxyHosts.of(conf).test(InetAddress.getLoopbackAddress()));
    conf.set(YarnConfiguration.PROXY_ADDRESS, "10.1.2.4:8089");
    assertTrue(ProxyHosts.of(conf).test(proxy));
    assertFalse(ProxyHosts.of(conf).test(rm));
    assertEquals("http://10.1.2.3:8088/ws/v1/cluster/isonomy/ui/app/" + APP, ProxyHosts.pageOf(APP, conf));
  }

  @Test
  void aClusterOnOneMachineAdmitsItsLoopbackAddresses() throws Exception {
    Configuration conf = new YarnConfiguration();
    conf.set(YarnConfiguration.RM_WEBAPP_ADDRESS, "127.0.0.9:8088");
    assertTrue(ProxyHosts.of(conf).test(InetAddress.getByName("127.0.0.1")));
    assertFalse(ProxyHosts.of(conf).test(InetAddress.getByName("10.1.2.3")));
  }

  @Test
  void ofAPairTheFirstIsNamedAndWhereNoneIsConfiguredNothing() {
    Configuration conf = new YarnConfiguration();
    assertEquals("", ProxyHosts.finalPageOf(APP, conf));
    conf.setBoolean(YarnConfiguration.RM_HA_ENABLED, true);
    conf.set(YarnConfiguration.RM_HA_IDS, "a,b");
    conf.set(YarnConfiguration.RM_HOSTNAME + ".a", "rma");
    conf.set(YarnConfiguration.RM_HOSTNAME + ".b", "rmb");
    assertEquals("http://rma:8088/ws/v1/cluster/isonomy/ui/app/" + APP, ProxyHosts.finalPageOf(APP, conf));
    conf.set(YarnConfiguration.RM_WEBAPP_ADDRESS + ".a", "rma:9099");
    assertEquals("http://rma:9099/ws/v1/cluster/isonomy/ui/app/" + APP, ProxyHosts.finalPageOf(APP, conf));
  }

  @Test
  void aHostThatMovedIsFoundAgainAndStrangersAskNoNamesAllTheTime() throws Exception {
    List<String> asked = new ArrayList<>();
    String[] now = {"10.0.0.3"};
    AtomicLong nanos = new AtomicLong();
    ProxyHosts hosts = new ProxyHosts(() -> {
      asked.add(now[0]);
      return List.of(now[0]);
    }, nanos::get);
    InetAddress later = InetAddress.getByName("10.0.0.4");
    assertTrue(hosts.test(InetAddress.getByName("10.0.0.3")));
    now[0] = "10.0.0.4";
    assertFalse(hosts.test(later));
    assertEquals(1, asked.size());
    nanos.addAndGet(301_000_000_000L);
    assertTrue(hosts.test(later));
  }

  @Test
  void aTargetIsText() {
    assertFalse(AppPage.html("/x\"><script>").contains("<script>"));
  }

  @Test
  void tensorBoardIsPartOfThePageAndWhatItPostsComesAsGet() throws Exception {
    HttpServer tensorBoard = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    tensorBoard.createContext("/", http -> {
      String asked = http.getRequestMethod() + " " + http.getRequestURI() + " "
          + new String(http.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
      boolean page = http.getRequestURI().getPath().endsWith("/");
      http.getResponseHeaders().set("Content-Type", page ? "text/html; charset=utf-8" : "application/json");
      http.getResponseHeaders().set("Content-Security-Policy", "script-src 'self'");
      byte[] body = (page ? "<html><head><title>T</title></head></html>" : asked).getBytes(StandardCharsets.UTF_8);
      http.sendResponseHeaders(http.getRequestURI().getPath().endsWith("absent") ? 404 : 200, body.length);
      http.getResponseBody().write(body);
      http.close();
    });
    tensorBoard.start();
    AppPage page = AppPage.start(InetAddress.getLoopbackAddress(), "/x", from -> true);
    try {
      assertEquals(404, open(page, "GET", "/tensorboard/").getResponseCode());
      page.board(AmBoard.newBuilder().setPort(tensorBoard.getAddress().getPort()).setBelow("/secret").build());
      HttpURLConnection html = open(page, "GET", "/tensorboard/");
      assertEquals("<html><head><script src=\"isonomy.js\"></script><title>T</title></head></html>", text(html));
      assertEquals("script-src 'self'", html.getHeaderField("Content-Security-Policy"));
      assertTrue(text(open(page, "GET", "/tensorboard/isonomy.js")).contains("XMLHttpRequest"));
      assertEquals("GET /secret/tensorboard/data/runs?a=b%20c ", text(open(page, "GET", "/tensorboard/data/runs?a=b%20c")));
      assertEquals("POST /secret/tensorboard/data/series?x=2 requests=%7B%22a%22%3A1%7D",
          text(open(page, "GET", "/tensorboard/data/series?x=2&_isonomy_post=cmVxdWVzdHM9JTdCJTIyYSUyMiUzQTElN0Q")));
      assertEquals(502, open(page, "GET", "/tensorboard/data/series?_isonomy_post=*").getResponseCode());
      assertEquals(404, open(page, "GET", "/tensorboard/absent").getResponseCode());
      assertEquals(405, open(page, "POST", "/tensorboard/data/series").getResponseCode());
      tensorBoard.stop(0);
      assertEquals(502, open(page, "GET", "/tensorboard/data/runs").getResponseCode());
    } finally {
      page.close();
      tensorBoard.stop(0);
    }
  }

  @Test
  void tensorBoardIsForTheProxyAlone() throws Exception {
    AppPage page = AppPage.start(InetAddress.getLoopbackAddress(), "/x", from -> false);
    try {
      assertEquals(403, open(page, "GET", "/tensorboard/isonomy.js").getResponseCode());
    } finally {
      page.close();
    }
  }

  private static String text(HttpURLConnection http) throws IOException {
    assertEquals(200, http.getResponseCode());
    return new String(http.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
  }

  private static HttpURLConnection open(AppPage page, String method) throws IOException {
    return open(page, method, "/");
  }

  private static HttpURLConnection open(AppPage page, String method, String path) throws IOException {
    String host = InetAddress.getLoopbackAddress().getHostAddress();
    HttpURLConnection http = (HttpURLConnection) new URL("http://" + host + ":" + page.port() + path).openConnection();
    http.setRequestMethod(method);
    http.setInstanceFollowRedirects(false);
    return http;
  }

  @Test
  void anAppRunsWithoutAPageWhereThereCanBeNone() {
    assertEquals("http://h:7/", AmShell.trackingUrl("h", () -> 7));
    assertEquals("", AmShell.trackingUrl("h", () -> {
      throw new IOException("no port is free");
    }));
    assertEquals("", AmShell.trackingUrl("h", () -> {
      throw new NoClassDefFoundError("com/sun/net/httpserver/HttpServer");
    }));
  }
}
