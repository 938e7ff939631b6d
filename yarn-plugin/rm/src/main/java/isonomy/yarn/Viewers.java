package isonomy.yarn;

import java.util.Collection;
import java.util.List;
import java.util.function.BiPredicate;
import java.util.stream.Collectors;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.records.ApplicationAccessType;
import org.apache.hadoop.yarn.api.records.QueueACL;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;

/** The apps that a caller may view: those that the ResourceManager's own REST shows the caller in full. */
final class Viewers {
  private final ApplicationACLsManager acls;
  private final BiPredicate<UserGroupInformation, RMApp> administersQueue;

  Viewers(ApplicationACLsManager acls, BiPredicate<UserGroupInformation, RMApp> administersQueue) {
    this.acls = acls;
    this.administersQueue = administersQueue;
  }

  static Viewers of(ResourceManager rm, String remoteAddress) {
    return new Viewers(rm.getApplicationACLsManager(), (caller, app) -> rm.getQueueACLsManager().checkAccess(caller,
        QueueACL.ADMINISTER_QUEUE, app, remoteAddress, List.of()));
  }

  /** Whether YARN checks ACLs (yarn.acl.enable). */
  boolean enforced() {
    return acls.areACLsEnabled();
  }

  /** The ids of those apps that the caller may view; none if the caller is unknown. */
  List<String> viewable(UserGroupInformation caller, Collection<RMApp> apps) {
    return apps.stream().filter(app -> caller != null
            && (acls.checkAccess(caller, ApplicationAccessType.VIEW_APP, app.getUser(), app.getApplicationId())
                || administersQueue.test(caller, app)))
        .map(app -> app.getApplicationId().toString()).collect(Collectors.toList());
  }
}
