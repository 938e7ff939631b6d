package isonomy.yarn.scale;

import isonomy.yarn.IsonomyScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.SchedulerEventType;

/** The two schedulers that are compared, with the CPU time of their events. */
final class Timed {
  static final Cost HEARTBEAT = new Cost();
  static final Cost NODE_ADDED = new Cost();
  static final Cost OTHER = new Cost();

  private Timed() {
  }

  private static Cost of(SchedulerEvent event) {
    SchedulerEventType type = event.getType();
    return type == SchedulerEventType.NODE_UPDATE ? HEARTBEAT
        : type == SchedulerEventType.NODE_ADDED ? NODE_ADDED : OTHER;
  }

  /** The plugin. */
  public static final class Isonomy extends IsonomyScheduler {
    @Override
    public void handle(SchedulerEvent event) {
      long begin = Cost.now();
      super.handle(event);
      of(event).add(begin);
    }
  }

  /** What it extends. */
  public static final class Capacity extends CapacityScheduler {
    @Override
    public void handle(SchedulerEvent event) {
      long begin = Cost.now();
      super.handle(event);
      of(event).add(begin);
    }
  }
}
