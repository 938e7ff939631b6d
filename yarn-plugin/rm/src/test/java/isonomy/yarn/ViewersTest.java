package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Proxy;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.records.ApplicationAccessType;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.security.ApplicationACLsManager;
import org.junit.jupiter.api.Test;

class ViewersTest {
  private static final ApplicationId OPEN = ApplicationId.newInstance(1, 1);
  private static final ApplicationId PRIVATE = ApplicationId.newInstance(1, 2);

  @Test
  void onlyWhomViewAppLetsSeesAnApp() {
    Viewers viewers = viewers(true);
    List<RMApp> apps = List.of(app(OPEN, "ann"), app(PRIVATE, "ann"));
    assertTrue(viewers.enforced());
    assertEquals(List.of(OPEN.toString(), PRIVATE.toString()), viewers.viewable(user("ann"), apps), "its owner");
    assertEquals(List.of(OPEN.toString()), viewers.viewable(user("bob"), apps), "named in its ACL");
    assertEquals(List.of(), viewers.viewable(user("eve"), apps));
    assertEquals(List.of(OPEN.toString(), PRIVATE.toString()), viewers.viewable(user("root"), apps), "YARN's admin");
    assertEquals(List.of(PRIVATE.toString()), viewers.viewable(user("chief"), apps), "administers its queue");
    assertEquals(List.of(), viewers.viewable(null, apps), "nobody known");
  }

  @Test
  void withoutAclsNothingIsEnforced() {
    assertFalse(viewers(false).enforced());
  }

  private static Viewers viewers(boolean enabled) {
    Configuration conf = new YarnConfiguration();
    conf.setBoolean(YarnConfiguration.YARN_ACL_ENABLE, enabled);
    conf.set(YarnConfiguration.YARN_ADMIN_ACL, "root");
    ApplicationACLsManager acls = new ApplicationACLsManager(conf);
    acls.addApplication(OPEN, Map.of(ApplicationAccessType.VIEW_APP, "bob"));
    acls.addApplication(PRIVATE, Map.of(ApplicationAccessType.VIEW_APP, " "));
    return new Viewers(acls, (caller, app) -> caller.getShortUserName().equals("chief")
        && app.getApplicationId().equals(PRIVATE));
  }

  private static UserGroupInformation user(String name) {
    return UserGroupInformation.createUserForTesting(name, new String[] {"people"});
  }

  private static RMApp app(ApplicationId id, String user) {
    return (RMApp) Proxy.newProxyInstance(RMApp.class.getClassLoader(), new Class<?>[] {RMApp.class},
        (proxy, method, arguments) -> method.getName().equals("getUser") ? user
            : method.getName().equals("getApplicationId") ? id : null);
  }
}
