package isonomy.yarn;

import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.google.protobuf.ByteString;
import isonomy.wire.v1.Query;
import isonomy.wire.v1.QueryReply;
import java.util.List;
import java.util.Map;
import javax.servlet.http.HttpServletRequest;
import javax.ws.rs.core.MediaType;
import javax.ws.rs.core.Response;
import javax.ws.rs.core.UriInfo;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeys;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.security.YarnAuthorizationProvider;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.webapp.RMWebAppUtil;

/**
 * Forwards calls of the RM's web app to the control plane.
 *
 * <p>The caller is whom the RM's authentication filter names: the Kerberos principal's short name with SPNEGO, the
 * owner of an RM delegation token, or with simple authentication the parameter user.name (or the signed cookie for
 * it). There is no caller if the filter knows nobody or only the static user (hadoop.http.staticuser.user).
 * With yarn.acl.enable the query lists the apps that the caller may view, by YARN's VIEW_APP.
 * Admins are the RM's admins: yarn.admin.acl as last refreshed, and the RM's own user.
 */
final class QueryForwarder {
  private static final int BODY_MAX = 1 << 20;
  private static final String REQUESTED_BY = "X-Requested-By";

  private final ResourceManager rm;
  private final Configuration conf;

  QueryForwarder(ResourceManager rm, Configuration conf) {
    this.rm = rm;
    this.conf = conf;
  }

  Response get(String path, HttpServletRequest http, UriInfo uri) {
    return forward("GET", path, http, uri, new byte[0]);
  }

  Response post(String path, HttpServletRequest http, UriInfo uri, byte[] body) {
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
    if (!scheduler.isOn()) {
      return error(503, "yarn-site.xml: " + Managed.MODE + " is off, Isonomy schedules nothing");
    }
    Bridge bridge = scheduler.bridge();
    if (bridge == null) {
      return error(503, "this ResourceManager is not active");
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
      return error(503, e.getMessage());
    }
  }

  private void setCaller(Query.Builder query, HttpServletRequest http) {
    UserGroupInformation caller = RMWebAppUtil.getCallerUserGroupInformation(http, true);
    boolean known = caller != null && !caller.getUserName().equals(conf.get(
        CommonConfigurationKeys.HADOOP_HTTP_STATIC_USER, CommonConfigurationKeys.DEFAULT_HADOOP_HTTP_STATIC_USER));
    Viewers viewers = Viewers.of(rm, http.getRemoteAddr());
    if (viewers.enforced()) {
      query.setAcls(true).addAllViewable(
          viewers.viewable(known ? caller : null, rm.getRMContext().getRMApps().values()));
    }
    if (!known) {
      return;
    }
    query.setUser(caller.getShortUserName());
    query.setAdmin(YarnAuthorizationProvider.getInstance(conf).isAdmin(caller));
  }

  private static Response error(int status, String message) {
    return Response.status(status).type(MediaType.APPLICATION_JSON)
        .entity(JsonNodeFactory.instance.objectNode().put("error", message) + "\n").build();
  }
}
