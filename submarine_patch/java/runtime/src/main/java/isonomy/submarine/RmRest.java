package isonomy.submarine;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.PrivilegedExceptionAction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.web.URLConnectionFactory;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.authentication.client.AuthenticationException;
import org.apache.hadoop.yarn.webapp.util.WebAppUtils;

/** Isonomy's resource in the ResourceManager's web app, under its authentication (simple or SPNEGO). */
final class RmRest {
  private static final int CONNECT_MS = 5_000;
  private static final int READ_MS = 15_000;
  private static final int ANSWER_BYTES_MAX = 8 << 20;
  private static final ObjectMapper JSON = new ObjectMapper();

  private final Configuration conf;

  /** The control plane does not answer now, as while it is restarted. */
  static final class Away extends IOException {
    private static final long serialVersionUID = 1L;

    private Away(String reason) {
      super(reason);
    }
  }

  RmRest(Configuration conf) {
    this.conf = conf;
  }

  /** GET of /ws/v1/cluster/isonomy/{view}, with its query, from the active ResourceManager. */
  JsonNode get(String view) throws IOException {
    String query = "/ws/v1/cluster/isonomy/" + view;
    try {
      // SPNEGO uses the thread's Subject: outside of doAs that is the ticket cache, not a keytab's login
      UserGroupInformation user = UserGroupInformation.getCurrentUser();
      return WebAppUtils.execOnActiveRM(conf,
          (base, asked) -> user.doAs((PrivilegedExceptionAction<JsonNode>) () -> fetch(base, asked)), query);
    } catch (IOException e) {
      throw e;
    } catch (Exception e) {
      throw new IOException(OneLineErrors.oneLine(e), e);
    }
  }

  private JsonNode fetch(String base, String query) throws IOException, AuthenticationException {
    boolean secure = UserGroupInformation.isSecurityEnabled();
    String user = UserGroupInformation.getCurrentUser().getShortUserName();
    String url = base + query + (secure ? "" : (query.contains("?") ? "&" : "?") + "user.name=" + URLEncoder.encode(user, StandardCharsets.UTF_8));
    URLConnectionFactory factory = url.startsWith("https:")
        ? URLConnectionFactory.newDefaultURLConnectionFactory(CONNECT_MS, READ_MS, conf)
        : URLConnectionFactory.DEFAULT_SYSTEM_CONNECTION_FACTORY; // the other reads all certificates
    try {
      HttpURLConnection connection =
          (HttpURLConnection) factory.openConnection(URI.create(url).toURL(), secure);
      connection.setConnectTimeout(CONNECT_MS);
      connection.setReadTimeout(READ_MS);
      connection.setRequestProperty("Accept", "application/json");
      return answer(connection, base);
    } catch (ConnectException e) {
      throw new IOException("the ResourceManager's web app " + base + " does not answer: " + e.getMessage(), e);
    } finally {
      factory.destroy();
    }
  }

  private static JsonNode answer(HttpURLConnection connection, String base) throws IOException {
    int status = connection.getResponseCode();
    String text;
    try (InputStream in = status < 400 ? connection.getInputStream() : connection.getErrorStream()) {
      text = in == null ? "" : new String(in.readNBytes(ANSWER_BYTES_MAX), StandardCharsets.UTF_8);
    }
    JsonNode body = parse(text);
    if (status == HttpURLConnection.HTTP_OK && body != null) {
      return body;
    }
    if (status == HttpURLConnection.HTTP_NOT_FOUND && (body == null || !body.hasNonNull("error"))) {
      throw new IOException("the ResourceManager at " + base + " does not know /ws/v1/cluster/isonomy: is"
          + " isonomy.yarn.IsonomyWebServices set in its yarn-site.xml (yarn.webapp.custom.webservice.class)?");
    }
    String reason = body != null && body.hasNonNull("error") ? body.get("error").asText() : "HTTP " + status;
    throw connection.getHeaderField("Retry-After") == null ? new IOException(reason) : new Away(reason);
  }

  /** The JSON in the text; null if it is not JSON. */
  private static JsonNode parse(String text) {
    try {
      JsonNode node = JSON.readTree(text);
      return node == null || node.isMissingNode() ? null : node;
    } catch (IOException e) {
      return null;
    }
  }
}
