package isonomy.yarn;

import javax.inject.Inject;
import javax.inject.Singleton;
import javax.servlet.http.HttpServletRequest;
import javax.ws.rs.GET;
import javax.ws.rs.POST;
import javax.ws.rs.Path;
import javax.ws.rs.PathParam;
import javax.ws.rs.core.Context;
import javax.ws.rs.core.Response;
import javax.ws.rs.core.UriInfo;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

/** The control plane's REST resource for Hadoop 3.3 and 3.4 (yarn-site.xml: yarn.http.rmwebapp.external.classes). */
@Singleton
@Path("/ws/v1/cluster/isonomy")
public class IsonomyExternalResource {
  private final QueryForwarder forwarder;

  @Inject
  public IsonomyExternalResource(ResourceManager rm) {
    this.forwarder = new QueryForwarder(rm, rm.getConfig());
  }

  @GET
  @Path("/{path:.*}")
  public Response get(@PathParam("path") String path, @Context HttpServletRequest http, @Context UriInfo uri) {
    return forwarder.get(path, http, uri);
  }

  @POST
  @Path("/{path:.*}")
  public Response post(
      @PathParam("path") String path, @Context HttpServletRequest http, @Context UriInfo uri, byte[] body) {
    return forwarder.post(path, http, uri, body);
  }
}
