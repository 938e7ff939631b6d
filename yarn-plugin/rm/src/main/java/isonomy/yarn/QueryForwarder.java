package isonomy.yarn;

import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.ByteString;
import isonomy.wire.v1.Query;
import isonomy.wire.v1.QueryReply;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import javax.servlet.http.HttpServletRequest;
import javax.ws.rs.GET;
import javax.ws.rs.POST;
import javax.ws.rs.Path;
import javax.ws.rs.PathParam;
import javax.ws.rs.core.Context;
import javax.ws.rs.core.MediaType;
import javax.ws.rs.core.Response;
import javax.ws.rs.core.UriInfo;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeys;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.records.ApplicationAccessType;
import org.apache.hadoop.yarn.api.records.QueueACL;
import org.apache.hadoop.yarn.security.YarnAuthorizationProvider;
import org.apache.hadoop.yarn.server.resourcemanager.RMAuditLogger;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.webapp.RMWebAppUtil;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;

/**
 * Forwards calls of the RM's web app to the control plane, and answers itself what is about the mode: that must work
 * while the control plane is stopped. In mode off only what reads is forwarded.
 *
 * <p>The caller is whom the RM's authentication filter names: the Kerberos principal's short name with SPNEGO, the
 * owner of an RM delegation token, or with simple authentication the parameter user.name (or the signed cookie for
 * it). There is no caller if the filter knows nobody or only the static user (hadoop.http.staticuser.user).
 * With yarn.acl.enable the query lists the apps that the caller may view, by YARN's VIEW_APP.
 * Admins are the RM's admins: yarn.admin.acl as last refreshed, and the RM's own user.
 */
public class QueryForwarder {
  private static final int BODY_MAX = 1 << 20;
  private static final String REQUESTED_BY = "X-Requested-By";
  private static final String OPERATION = "Isonomy mode";
  private static final String TARGET = "IsonomyScheduler";

  private final ResourceManager rm;
  private final Configuration conf;

  QueryForwarder(ResourceManager rm, Configuration conf) {
    this.rm = rm;
    this.conf = conf;
  }

  @GET
  @Path("/{path:.*}")
  public Response get(@PathParam("path") String path, @Context HttpServletRequest http, @Context UriInfo uri) {
    return forward("GET", path, http, uri, new byte[0]);
  }

  @POST
  @Path("/{path:.*}")
  public Response post(
      @PathParam("path") String path, @Context HttpServletRequest http, @Context UriInfo uri, byte[] body) {
    if (http.getHeader(REQUESTED_BY) == null) {
      return error(403, "POST needs the header " + REQUESTED_BY + " (any value): no form of another site can send it");
    }
    return forward("POST", path, http, uri, body == null ? new byte[0] : body);
  }

  private Response forward(String method, String path, HttpServletRequest http, UriInfo uri, byte[] body) {
    if (body.length > BODY_MAX) {
      return error(413, "the body is larger than " + BODY_MAX + " bytes");
    }
    if (!(rm.getResourceScheduler() instanceof IsonomyScheduler)) {
      return error(
          503, "yarn-site.xml: yarn.resourcemanager.scheduler.class is not " + IsonomyScheduler.class.getName());
    }
    IsonomyScheduler scheduler = (IsonomyScheduler) rm.getResourceScheduler();
    ModeSwitch modes = scheduler.modeSwitch;
    if (modes == null) {
      return error(503, "this ResourceManager is not active");
    }
    if (path.equals("mode")) {
      return method.equals("POST") ? switched(scheduler, http, uri) : mode(scheduler.managed, modes);
    }
    Managed managed = scheduler.managed;
    if (!managed.isOn() && (!method.equals("GET") || path.matches("/*token/*"))) {
      return error(503, "the mode is " + managed + ": Isonomy schedules nothing (isonomy mode)");
    }
    Bridge bridge = scheduler.bridge;
    if (bridge == null) {
      return away(path, managed, "yarn-site.xml does not say how to reach the control plane");
    }
    Query.Builder query = Query.newBuilder().setMethod(method).setPath(path).setBody(ByteString.copyFrom(body));
    for (Map.Entry<String, List<String>> parameter : uri.getQueryParameters().entrySet()) {
      if (!parameter.getKey().equals("user.name") && !parameter.getValue().isEmpty()) {
        query.putParameters(parameter.getKey(), parameter.getValue().get(0));
      }
    }
    setCaller(query, http);
    try {
      QueryReply reply = bridge.query(query.build());
      Response.ResponseBuilder answer = Response.status(reply.getStatus()).type(reply.getContentType())
          .entity(reply.getBody().toByteArray());
      reply.getHeadersMap().forEach(answer::header);
      return answer.build();
    } catch (BridgeException e) {
      return away(path, managed, e.getMessage());
    }
  }

  /** Of a control plane that does not answer: in mode off nobody is to be called for that. */
  private static Response away(String path, Managed managed, String why) {
    return path.equals("metrics") && !managed.isOn()
        ? Response.ok("# the control plane does not answer, and the mode is off\nisonomy_mode{mode=\"off\"} 1\n")
            .type("text/plain; version=0.0.4").build()
        : answer(503, managed.isOn() ? why : "the mode is " + managed + "; " + why).header("Retry-After", 1).build();
  }

  // ---- the mode

  private Response mode(Managed managed, ModeSwitch modes) {
    ObjectNode json = managed.toJson().put("place", modes.place()).put("problem", managed.problem());
    long atMs = json.remove("at_ms").asLong();
    json.put("at_s", atMs == 0 ? null : atMs / 1000.0);
    Managed.obsolete(conf).forEach(json.putArray("obsolete")::add);
    return Response.ok(json + "\n").type(MediaType.APPLICATION_JSON).build();
  }

  private Response switched(IsonomyScheduler scheduler, HttpServletRequest http, UriInfo uri) {
    UserGroupInformation caller = caller(http);
    String who = caller == null ? "a caller that the ResourceManager does not know" : caller.getShortUserName();
    if (!isAdmin(caller)) {
      RMAuditLogger.logFailure(who, OPERATION, "yarn.admin.acl", TARGET, "not an admin");
      return error(403, "mode: " + who + " is not in YARN's admin ACL (yarn-site.xml: yarn.admin.acl)");
    }
    String named = uri.getQueryParameters().getFirst("queues");
    List<String> queues = named == null ? null : List.of(named.trim().split("\\s*,\\s*"));
    Set<String> known = scheduler.getCapacitySchedulerQueueManager().getQueues().values().stream()
        .map(CSQueue::getQueuePath).collect(Collectors.toSet());
    if (queues != null && !known.containsAll(queues)) {
      return error(400, "queues: " + queues.stream().filter(q -> !known.contains(q)).findFirst().orElseThrow()
          + " is no queue's full path, as root.research is");
    }
    try {
      Managed now = scheduler.modeSwitch.to(String.valueOf(uri.getQueryParameters().getFirst("mode")), queues, who);
      RMAuditLogger.logSuccess(who, OPERATION + " " + now.name() + " for "
          + (now.queues().isEmpty() ? "all queues" : String.join(",", now.queues())), TARGET);
      return mode(now, scheduler.modeSwitch);
    } catch (IllegalArgumentException e) {
      return error(400, e.getMessage());
    } catch (IOException e) {
      RMAuditLogger.logFailure(who, OPERATION, "", TARGET, "not stored");
      return error(503, e.getMessage());
    }
  }

  // ---- the caller

  private void setCaller(Query.Builder query, HttpServletRequest http) {
    UserGroupInformation caller = caller(http);
    setViewable(query, caller, http.getRemoteAddr());
    if (caller != null) {
      query.setUser(caller.getShortUserName());
      query.setAdmin(isAdmin(caller));
    }
  }

  /** With ACLs: the apps that a caller may view, which the ResourceManager's own REST shows in full; nobody: none. */
  void setViewable(Query.Builder query, UserGroupInformation caller, String remoteAddress) {
    ApplicationACLsManager acls = rm.getApplicationACLsManager();
    if (acls.areACLsEnabled()) {
      query.setAcls(true);
      rm.getRMContext().getRMApps().values().stream().filter(app -> caller != null
              && (acls.checkAccess(caller, ApplicationAccessType.VIEW_APP, app.getUser(), app.getApplicationId())
                  || rm.getQueueACLsManager().checkAccess(
                      caller, QueueACL.ADMINISTER_QUEUE, app, remoteAddress, List.of())))
          .forEach(app -> query.addViewable(app.getApplicationId().toString()));
    }
  }

  /** Null if the filter knows nobody. */
  private UserGroupInformation caller(HttpServletRequest http) {
    UserGroupInformation caller = RMWebAppUtil.getCallerUserGroupInformation(http, true);
    boolean known = caller != null && !caller.getUserName().equals(conf.get(
        CommonConfigurationKeys.HADOOP_HTTP_STATIC_USER, CommonConfigurationKeys.DEFAULT_HADOOP_HTTP_STATIC_USER));
    return known ? caller : null;
  }

  private boolean isAdmin(UserGroupInformation caller) {
    return caller != null && YarnAuthorizationProvider.getInstance(conf).isAdmin(caller);
  }

  private static Response error(int status, String message) {
    return answer(status, message).build();
  }

  private static Response.ResponseBuilder answer(int status, String message) {
    return Response.status(status).type(MediaType.APPLICATION_JSON)
        .entity(JsonNodeFactory.instance.objectNode().put("error", message) + "\n");
  }
}
