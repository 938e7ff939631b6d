package isonomy.am;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import isonomy.wire.v1.AmBoard;
import java.io.File;
import java.io.IOException;
import java.io.StringWriter;
import java.net.InetAddress;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.ApplicationConstants.Environment;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.async.AMRMClientAsync;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The application master: passes YARN's callbacks to the Agent and the Agent's commands to YARN. It makes no decisions.
 *
 * <p>Usage: {@code AmShell PYTHON}. The Agent is the child {@code PYTHON -m submarine_patch.agent}; its standard
 * input is one line of JSON (port, token, app_id, attempt), then end of file. If the Agent ends before it has
 * finished the app, this attempt fails and its containers keep running for the next one.
 */
public final class AmShell {
  private static final Logger LOG = LoggerFactory.getLogger(AmShell.class);
  private static final int HEARTBEAT_MS = 250;
  private static final int EVENTS_MAX = 10_000;
  private static final long FULL_WAIT_MS = 60_000;
  private static final long AGENT_EXIT_S = 10;
  private static final String SPEC = "isonomy-app.json";

  private final YarnConfiguration conf = new YarnConfiguration();
  private final CompletableFuture<Outcome> outcome = new CompletableFuture<>();
  private final EventQueue events = new EventQueue(EVENTS_MAX, FULL_WAIT_MS,
      why -> outcome.complete(Outcome.attemptFailed(why, Outcome.SOFTWARE)));
  private final Containers containers = new Containers(events, outcome::complete);
  private final AMRMClientAsync<ContainerRequest> rm =
      AMRMClientAsync.createAMRMClientAsync(HEARTBEAT_MS, containers);
  private final NMClient nm = NMClient.createNMClient();
  private final ApplicationAttemptId attempt =
      ContainerId.fromString(System.getenv(Environment.CONTAINER_ID.name())).getApplicationAttemptId();
  private AppPage page;

  private AmShell() {
  }

  public static void main(String[] args) {
    if (args.length != 1) {
      System.err.println("usage: AmShell PYTHON");
      System.exit(2);
    }
    int exitCode = Outcome.SOFTWARE;
    try {
      exitCode = new AmShell().run(args[0]);
    } catch (IOException | YarnException | InterruptedException e) {
      LOG.error("the application master failed", e);
      System.err.println("the application master failed: " + e);
    }
    System.exit(exitCode);
  }

  private int run(String python) throws IOException, YarnException, InterruptedException {
    Credentials own = UserGroupInformation.getCurrentUser().getCredentials();
    conf.setBoolean(YarnConfiguration.YARN_CLIENT_LOAD_RESOURCETYPES_FROM_SERVER, true);
    rm.init(conf);
    nm.init(conf);
    nm.cleanupRunningContainersOnStop(false);
    rm.start();
    nm.start();
    containers.connect(rm, nm, new WorkerLaunch(conf, own));
    register();
    LoopbackGateway gateway =
        new LoopbackGateway(new AgentApi(events, containers, outcome::complete, this::board));
    AgentProcess agent = AgentProcess.start(List.of(python, "-m", "submarine_patch.agent"),
        greeting(gateway.port(), gateway.token, attempt));
    Runtime.getRuntime().addShutdownHook(new Thread(agent::stop, "stop-agent"));
    agent.onExit(outcome::complete);
    int exitCode = end(outcome.join(), agent);
    gateway.close();
    return exitCode;
  }

  private void board(AmBoard board) {
    if (page != null) {
      page.board(board);
    }
  }

  /** Registers with the ResourceManager; containers of previous attempts become the first events. */
  private void register() throws IOException, YarnException {
    String given = System.getenv(Environment.NM_HOST.name());
    String host = given == null ? InetAddress.getLocalHost().getHostName() : given;
    RegisterApplicationMasterResponse response = rm.registerApplicationMaster(host, -1, trackingUrl(host));
    containers.onContainersReceivedFromPreviousAttempts(response.getContainersFromPreviousAttempts());
    LOG.info("registered, {} containers adopted", response.getContainersFromPreviousAttempts().size());
  }

  private String trackingUrl(String host) {
    return trackingUrl(host, () -> {
      String target = ProxyHosts.pageOf(attempt.getApplicationId(), conf);
      page = AppPage.start(InetAddress.getByName(host), target, ProxyHosts.of(conf));
      return page.port();
    });
  }

  /**
   * The URL of the page, which is opened and tells its port; a failure is only logged, as a reduced Java runtime may lack
   * the module jdk.httpserver.
   */
  static String trackingUrl(String host, Callable<Integer> page) {
    try {
      return "http://" + host + ":" + page.call() + "/";
    } catch (Exception | LinkageError e) {
      LOG.warn("there is no page for this app at {}", host, e);
      return "";
    }
  }

  static String greeting(int port, String token, ApplicationAttemptId attempt) throws IOException {
    StringWriter line = new StringWriter();
    try (JsonGenerator json = new JsonFactory().createGenerator(line)) {
      json.writeStartObject();
      json.writeNumberField("port", port);
      json.writeStringField("token", token);
      json.writeStringField("app_id", attempt.getApplicationId().toString());
      json.writeNumberField("attempt", attempt.getAttemptId());
      json.writeEndObject();
    }
    return line.toString();
  }

  private int end(Outcome how, AgentProcess agent) throws IOException, YarnException, InterruptedException {
    if (how.status != null) {
      LOG.info("finished: {} {}", how.status, how.message);
      String url =
          how.trackingUrl.isEmpty() ? ProxyHosts.finalPageOf(attempt.getApplicationId(), conf) : how.trackingUrl;
      rm.unregisterApplicationMaster(how.status, how.message, url);
      agent.awaitExit(AGENT_EXIT_S);
    } else {
      LOG.error("this attempt fails: {}", how.message);
      System.err.println(how.message);
    }
    agent.stop();
    if (page != null) {
      page.close();
    }
    if (how.status != null) {
      clear(new Path(staging(new File(SPEC))), conf);
    }
    return how.exitCode;
  }

  /** The app's folder in the staging area. */
  static String staging(File spec) throws IOException {
    try (JsonParser json = new JsonFactory().createParser(spec)) {
      json.nextToken();
      while (json.nextToken() == JsonToken.FIELD_NAME) {
        boolean found = json.getCurrentName().equals("staging");
        json.nextToken();
        if (found) {
          return json.getText();
        }
        json.skipChildren();
      }
    }
    throw new IOException(spec + ": no staging in it");
  }

  /**
   * Deletes what its attempts needed, once YARN has the app's end and starts no other; checkpoints, results and models
   * stay.
   */
  static void clear(Path staging, Configuration conf) {
    try {
      FileSystem fs = staging.getFileSystem(conf);
      for (String name : List.of("isonomy-am.jar", SPEC, "files", "agent")) {
        fs.delete(new Path(staging, name), true);
      }
      if (fs.listStatus(staging).length == 0) {
        fs.delete(staging, false);
      }
    } catch (IOException e) {
      LOG.warn("files are left in {}", staging, e);
    }
  }
}
