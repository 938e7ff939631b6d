package isonomy.yarn;

import isonomy.wire.v1.DirectiveResult;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Supplier;

/** Results of the newest directives by id, so that a repeated directive is carried out only once. */
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

  /** The result of the directive; carries it out unless that has been done. */
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
