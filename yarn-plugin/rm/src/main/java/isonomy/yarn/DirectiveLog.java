package isonomy.yarn;

import isonomy.wire.v1.DirectiveResult;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Supplier;

/** How directives ended, by id: each is carried out once, however often it arrives. Keeps the newest ones. */
final class DirectiveLog {
  private final Map<String, DirectiveResult> results;

  DirectiveLog(int kept) {
    results = new LinkedHashMap<>(16, 0.75f, true) {
      private static final long serialVersionUID = 1L;

      @Override
      protected boolean removeEldestEntry(Map.Entry<String, DirectiveResult> eldest) {
        return size() > kept;
      }
    };
  }

  /** The result of the directive, which is carried out now unless it has been already. */
  synchronized DirectiveResult once(String id, Supplier<DirectiveResult.Builder> carryOut) {
    DirectiveResult known = results.get(id);
    if (known != null) {
      return known;
    }
    DirectiveResult result = carryOut.get().setDirectiveId(id).build();
    results.put(id, result);
    return result;
  }
}
