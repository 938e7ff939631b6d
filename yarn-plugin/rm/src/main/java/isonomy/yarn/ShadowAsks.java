package isonomy.yarn;

import isonomy.wire.v1.Ask;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;

/**
 * In the mode shadow: what applications wait for in GPUs at CapacityScheduler. It is told and never held.
 *
 * <p>Not told are asks that came through the constraint API: the scheduler gives out no copy of them.
 */
final class ShadowAsks {
  private static final AskBook.Pending COUNTED_BY_YARN = (partition, containers, each) -> { };
  private final AskBook book;

  ShadowAsks(Consumer<Ask> sink) {
    book = new AskBook(sink);
  }

  /** Tells what has changed of an attempt's asks; any thread, with or without the scheduler's lock. */
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
