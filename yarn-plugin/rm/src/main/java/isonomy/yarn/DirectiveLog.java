package isonomy.yarn;

import isonomy.wire.v1.DirectiveResult;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.hadoop.yarn.util.LRUCacheHashMap;

/** Results of the newest directives by id, so that a repeated directive is carried out only once. */
final class DirectiveLog {
  private final Map<String, DirectiveResult> results;

  DirectiveLog(int kept) {
    results = new LRUCacheHashMap<>(kept, true);
  }

  /** The result of the directive; carries it out unless that has been done. */
  synchronized DirectiveResult once(String id, Supplier<DirectiveResult.Builder> carryOut) {
    return results.computeIfAbsent(id, unknown -> carryOut.get().setDirectiveId(id).build());
  }
}
