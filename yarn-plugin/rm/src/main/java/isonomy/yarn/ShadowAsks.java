package isonomy.yarn;

import isonomy.wire.v1.Ask;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;

/**
 * The asks for GPUs that wait at CapacityScheduler in mode shadow; they are reported and never held back.
 *
 * <p>Asks through the constraint API are not reported, because the scheduler does not expose them.
 */
final class ShadowAsks {
  private static final AskBook.Pending COUNTED_BY_YARN = (partition, containers, each) -> { };
  private final AskBook book;

  ShadowAsks(Consumer<Ask> sink) {
    book = new AskBook(sink);
  }

  /** Reports what has changed in an attempt's asks; any thread, with or without the scheduler's lock. */
  synchronized void look(FiCaSchedulerApp app) {
    ApplicationAttemptId id = app.getApplicationAttemptId();
    if (app.isStopped()) {
      book.close(id);
      return;
    }
    List<ResourceRequest> waiting = new ArrayList<>();
    for (ResourceRequest r : app.getAppSchedulingInfo().getAllResourceRequests()) {
      if (Gpus.of(r.getCapability()) > 0 && r.getNumContainers() > 0) {
        waiting.add(AskBook.copy(r, r.getNumContainers()));
      }
    }
    book.open(id, COUNTED_BY_YARN);
    book.replace(id, waiting);
  }

  void close(ApplicationAttemptId id) {
    book.close(id);
  }

  List<Ask> all() {
    return book.all();
  }
}
