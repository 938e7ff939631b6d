package isonomy.yarn;

import javax.inject.Inject;
import javax.inject.Named;
import javax.inject.Singleton;
import javax.ws.rs.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.webapp.RMWebServices;

/**
 * The RM's own REST resource, and below /ws/v1/cluster/isonomy/ the control plane's (yarn-site.xml:
 * yarn.webapp.custom.webservice.class). For Hadoop 3.5; older ones have {@link IsonomyExternalResource}.
 */
@Singleton
@Path("/ws/v1/cluster")
public class IsonomyWebServices extends RMWebServices {
  private final QueryForwarder forwarder;

  @Inject
  public IsonomyWebServices(@Named("rm") ResourceManager rm, @Named("conf") Configuration conf) {
    super(rm, conf);
    this.forwarder = new QueryForwarder(rm, conf);
  }

  @Path("/isonomy")
  public QueryForwarder isonomy() {
    return forwarder;
  }
}
