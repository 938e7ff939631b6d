package isonomy.submarine;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.yarn.api.records.ApplicationId;

/**
 * The Agent's identity, and the control plane's address.
 *
 * @param secret the Isonomy token; in the application's credentials only, never in a file of ours or a log
 * @param arbiter host:port of the control plane
 * @param ca certificate of the control plane's authority, PEM; empty without TLS
 */
record AgentToken(String secret, String arbiter, String ca) {
  private static final Duration AWAY_MAX = Duration.ofSeconds(30);
  private static final Duration RETRY = Duration.ofSeconds(1);
  private static final Text ALIAS = new Text("isonomy.token");

  /** Asks the control plane; for a while again where it is away, as a restart takes some seconds. */
  static AgentToken fetch(RmRest rest, ApplicationId app) throws IOException {
    JsonNode reply;
    try {
      reply = ask(rest, app);
    } catch (IOException e) {
      throw new IOException("no Isonomy token, nothing was submitted: " + OneLineErrors.oneLine(e), e);
    }
    String secret = reply.path("token").asText("");
    String arbiter = reply.path("arbiter").asText("");
    if (secret.isEmpty() || arbiter.isEmpty()) {
      throw new IOException("no Isonomy token, nothing was submitted: the control plane's answer has no 'token' or"
          + " no 'arbiter'");
    }
    return new AgentToken(secret, arbiter, reply.path("ca").asText(""));
  }

  private static JsonNode ask(RmRest rest, ApplicationId app) throws IOException {
    long giveUpNs = System.nanoTime() + AWAY_MAX.toNanos();
    for (boolean first = true;; first = false) {
      try {
        return rest.get("token?app=" + app);
      } catch (RmRest.Away e) {
        if (System.nanoTime() > giveUpNs || Thread.currentThread().isInterrupted()) { // else it would not pause
          throw e;
        }
        if (first) {
          System.err.println("submarine: note: " + OneLineErrors.oneLine(e) + "; trying again for "
              + AWAY_MAX.toSeconds() + " s");
        }
        LockSupport.parkNanos(RETRY.toNanos());
      }
    }
  }

  void addTo(Credentials credentials) {
    credentials.addSecretKey(ALIAS, secret.getBytes(StandardCharsets.UTF_8));
  }

  @Override
  public String toString() {
    return "AgentToken[arbiter=" + arbiter + "]";
  }
}
