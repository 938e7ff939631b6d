package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

/** One user's queries leave room for others', and all users' for an operator's. */
class QuerySlotsTest {
  @Test
  void aUserHasFewAndOthersHaveTheirs() {
    QuerySlots slots = new QuerySlots();
    for (int i = 0; i < QuerySlots.OF_A_USER; i++) {
      slots.take("mallory", false);
    }
    BridgeException refused = assertThrows(BridgeException.class, () -> slots.take("mallory", false));
    assertTrue(refused.getMessage().contains("8 other queries of yours"), refused.getMessage());
    slots.take("alice", false);
    slots.give("mallory");
    slots.take("mallory", false);
  }

  @Test
  void someAreKeptForAdmins() {
    QuerySlots slots = new QuerySlots();
    for (int i = 0; i < QuerySlots.ALL - QuerySlots.FOR_ADMINS; i++) {
      slots.take("user" + i, false);
    }
    assertThrows(BridgeException.class, () -> slots.take("one more", false));
    for (int i = 0; i < QuerySlots.FOR_ADMINS; i++) {
      slots.take("operator", true);
    }
    assertThrows(BridgeException.class, () -> slots.take("operator", true));
    slots.give("user0");
    slots.take("operator", true);
  }
}
