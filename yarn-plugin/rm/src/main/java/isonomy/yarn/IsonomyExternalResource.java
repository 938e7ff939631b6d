package isonomy.yarn;

import javax.inject.Inject;
import javax.inject.Singleton;
import javax.ws.rs.Path;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

/** The control plane's REST resource for Hadoop 3.3 and 3.4 (yarn-site.xml: yarn.http.rmwebapp.external.classes). */
@Singleton
@Path("/ws/v1/cluster/isonomy")
public class IsonomyExternalResource extends QueryForwarder {
  @Inject
  public IsonomyExternalResource(ResourceManager rm) {
    super(rm, rm.getConfig());
  }
}
