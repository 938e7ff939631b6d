package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;

import isonomy.wire.v1.Query;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.records.ApplicationAccessType;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.QueueACL;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.security.QueueACLsManager;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;
import org.junit.jupiter.api.Test;

class QueryForwarderTest {
  private static final ApplicationId OPEN = ApplicationId.newInstance(1, 1);
  private static final ApplicationId PRIVATE = ApplicationId.newInstance(1, 2);

  @Test
  void onlyWhomViewAppLetsSeesAnApp() {
    assertEquals(List.of(OPEN.toString(), PRIVATE.toString()), viewable("ann"), "their owner");
    assertEquals(List.of(OPEN.toString()), viewable("bob"), "named in its ACL");
    assertEquals(List.of(), viewable("eve"));
    assertEquals(List.of(OPEN.toString(), PRIVATE.toString()), viewable("root"), "YARN's admin");
    assertEquals(List.of(PRIVATE.toString()), viewable("chief"), "administers its queue");
    assertEquals(List.of(), viewable(null), "nobody known");
  }

  @Test
  void withoutAclsNothingIsEnforced() {
    assertFalse(asked(false, "eve").getAcls());
  }

  private static List<String> viewable(String name) {
    Query.Builder query = asked(true, name);
    assertTrue(query.getAcls());
    return query.getViewableList().stream().sorted().collect(Collectors.toList());
  }

  /** What the control plane is told of a caller from host h. */
  private static Query.Builder asked(boolean enabled, String name) {
    Configuration conf = new YarnConfiguration();
    conf.setBoolean(YarnConfiguration.YARN_ACL_ENABLE, enabled);
    conf.set(YarnConfiguration.YARN_ADMIN_ACL, "root");
    ApplicationACLsManager acls = new ApplicationACLsManager(conf);
    acls.addApplication(OPEN, Map.of(ApplicationAccessType.VIEW_APP, "bob"));
    acls.addApplication(PRIVATE, Map.of(ApplicationAccessType.VIEW_APP, " "));
    RMApp hidden = app(PRIVATE, "ann");
    ConcurrentMap<ApplicationId, RMApp> apps = new ConcurrentHashMap<>(Map.of(OPEN, app(OPEN, "ann"), PRIVATE, hidden));
    UserGroupInformation caller = name == null ? null : user(name);
    QueueACLsManager queues = mock(QueueACLsManager.class);
    when(queues.checkAccess(caller, QueueACL.ADMINISTER_QUEUE, hidden, "h", List.of())).thenReturn("chief".equals(name));
    RMContext context = mock(RMContext.class);
    when(context.getRMApps()).thenReturn(apps);
    ResourceManager rm = mock(ResourceManager.class);
    when(rm.getRMContext()).thenReturn(context);
    when(rm.getApplicationACLsManager()).thenReturn(acls);
    when(rm.getQueueACLsManager()).thenReturn(queues);
    Query.Builder query = Query.newBuilder();
    new QueryForwarder(rm, conf).setViewable(query, caller, "h");
    return query;
  }

  private static UserGroupInformation user(String name) {
    return UserGroupInformation.createUserForTesting(name, new String[] {"people"});
  }

  private static RMApp app(ApplicationId id, String user) {
    RMApp app = mock(RMApp.class);
    when(app.getUser()).thenReturn(user);
    when(app.getApplicationId()).thenReturn(id);
    return app;
  }
}
