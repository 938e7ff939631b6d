package isonomy.yarn;

import java.util.HashMap;
import java.util.Map;

/** Which REST calls may wait for the control plane: a bounded number, few of one user, and some only of admins. */
final class QuerySlots {
  static final int ALL = 32;
  static final int OF_A_USER = 8;
  static final int FOR_ADMINS = 8;

  private final Map<String, Integer> byUser = new HashMap<>();
  private int taken;

  /** Takes a slot; throws BridgeException where there is none for this caller. */
  synchronized void take(String user, boolean admin) {
    int mine = byUser.getOrDefault(user, 0);
    if (taken >= (admin ? ALL : ALL - FOR_ADMINS)) {
      throw new BridgeException("the control plane is busy with " + taken + " other queries; try again");
    }
    if (!admin && mine >= OF_A_USER) {
      throw new BridgeException("the control plane is busy with " + mine + " other queries of yours; try again");
    }
    taken++;
    byUser.merge(user, 1, Integer::sum);
  }

  /** Gives the slot back. */
  synchronized void give(String user) {
    taken--;
    byUser.computeIfPresent(user, (name, n) -> n > 1 ? n - 1 : null);
  }
}
