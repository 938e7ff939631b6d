package isonomy.yarn;

import com.google.protobuf.InvalidProtocolBufferException;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.Events;
import isonomy.wire.v1.Hello;
import isonomy.wire.v1.Poll;
import isonomy.wire.v1.Query;
import isonomy.wire.v1.QueryReply;
import isonomy.wire.v1.Ready;
import isonomy.wire.v1.Request;
import isonomy.wire.v1.Response;
import isonomy.wire.v1.Snapshot;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.util.VersionInfo;
import org.apache.hadoop.yarn.util.LRUCacheHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Talks to the control plane from two daemon threads: one sends events, one waits for directives. Neither holds a
 * scheduler lock during a call. A failed request is repeated with the same id until it is answered. If the control
 * plane does not know this run of the plugin, a snapshot is sent first.
 */
final class Bridge implements AutoCloseable {
  static final int EXCHANGE_MS = 10_000;
  static final int QUERY_MS = 30_000;
  static final int POLL_MS = 2_000;
  private static final int EVENTS_AT_ONCE = 1_000;
  /** A longer request the control plane does not read, and py4j would repeat it until there is no memory left. */
  private static final int REQUEST_MAX = 95 << 20;
  private static final int IDLE_MS = 250;
  private static final long BACKOFF_MIN_MS = 100;
  private static final long BACKOFF_MAX_MS = 2_000;
  private static final int DIRECTIVES_KEPT = 50_000;
  private static final Logger LOG = LoggerFactory.getLogger(Bridge.class);

  /** The scheduler as the bridge uses it. */
  interface Cluster {
    /** YARN's present state, which includes all events up to `lastSeq`. */
    Snapshot snapshot(long lastSeq);

    /** Whether recovery has ended. */
    boolean ready();

    DirectiveResult.Builder carryOut(Directive directive);
  }

  private interface Step {
    void run() throws InterruptedException;
  }

  private final Cluster cluster;
  /** The links to the control plane, each with its own deadline and connections. */
  private final ControlPlane events;
  private final ControlPlane polls;
  private final ControlPlane queries;
  private final EventQueue queue;
  private final String epoch = UUID.randomUUID().toString();
  private final AtomicLong lastId = new AtomicLong();
  /** Results of the newest directives by id, so that a repeated one is carried out only once; of the directives' thread. */
  private final Map<String, DirectiveResult> results = new LRUCacheHashMap<>(DIRECTIVES_KEPT, true);
  private final QuerySlots slots = new QuerySlots();
  private final Thread eventThread = new Thread(() -> repeat(this::sendEvents, this::resend), "isonomy-events");
  private final Thread directiveThread = new Thread(() -> repeat(this::takeDirectives, () -> { }), "isonomy-directives");
  /** What is received of the directives so far; of their thread. */
  private final Poll.Builder poll = Poll.newBuilder().setWaitMs(POLL_MS);
  /** Whether the control plane knows that recovery has ended; of the events' thread. */
  private boolean readyTold;
  /** Held while a directive is carried out: CapacityScheduler would leave a container half allocated if interrupted. */
  private final Object carrying = new Object();
  private volatile boolean stopped;
  /** Guarded by this: the numbers of the snapshot that is wanted, and of the one that the control plane has. */
  private long wanted = 1;
  private long taken;

  Bridge(Cluster cluster, ControlPlane events, ControlPlane polls, ControlPlane queries, int queueSize) {
    this.cluster = cluster;
    this.events = events;
    this.polls = polls;
    this.queries = queries;
    this.queue = new EventQueue(queueSize);
    eventThread.setDaemon(true);
    directiveThread.setDaemon(true);
  }

  void start() {
    eventThread.start();
    directiveThread.start();
  }

  /** Waits for the directive that is carried out, so the caller may hold no lock of the scheduler. */
  @Override
  public void close() {
    stopped = true;
    eventThread.interrupt();
    synchronized (carrying) {
      directiveThread.interrupt();
    }
    List.of(events, polls, queries).forEach(ControlPlane::close);
  }

  /** Queues an event for the control plane; never blocks. */
  void emit(Event.Builder event) {
    queue.add(event);
  }

  /** Sends a snapshot before the next events. */
  synchronized void resend() {
    wanted++;
  }

  /** Repeats a thread's step until the bridge is closed, a little later after a failure. */
  private void repeat(Step step, Runnable afterFailure) {
    try {
      while (!stopped) {
        try {
          step.run();
        } catch (RuntimeException | Error e) {
          LOG.error("{} continues after a failure", Thread.currentThread().getName(), e);
          afterFailure.run();
          Thread.sleep(BACKOFF_MIN_MS);
        }
      }
    } catch (InterruptedException e) {
      LOG.debug("Closed", e);
    }
  }

  // ---- events

  private void sendEvents() throws InterruptedException {
    if (!known() || queue.overflowed()) {
      readyTold = hello();
    }
    if (!readyTold && cluster.ready()) {
      readyTold = true;
      emit(Event.newBuilder().setReady(Ready.getDefaultInstance()));
    }
    List<Event> oldest = queue.peek(EVENTS_AT_ONCE, IDLE_MS);
    if (!oldest.isEmpty() && known()) {
      send(oldest);
    }
  }

  /** Sends a snapshot of the present state until it is accepted; returns whether recovery had ended by then. */
  private boolean hello() throws InterruptedException {
    if (queue.overflowed()) {
      LOG.warn("Too many events waited for the control plane (isonomy.bridge.queue-size): a snapshot replaces them");
    }
    Retries retries = new Retries();
    while (!stopped) {
      try {
        // Check first that the control plane answers, because a snapshot is expensive.
        once(events, request().setEvents(Events.getDefaultInstance()).build());
        long number = wanted();
        Snapshot snapshot = cluster.snapshot(queue.restart()).toBuilder().setRmLife(epoch).build();
        Response response = once(events, request().setHello(Hello.newBuilder().setSnapshot(snapshot)
            .setHadoopVersion(VersionInfo.getVersion()).setPluginVersion(version())).build());
        if (response.getError().isEmpty()) {
          LOG.info("The control plane has taken a snapshot: {} nodes, {} applications, {} asks, {} containers",
              snapshot.getNodesCount(), snapshot.getApplicationsCount(), snapshot.getAsksCount(),
              snapshot.getContainersCount());
          setTaken(number);
          return snapshot.getReady();
        }
        retries.after("The control plane did not take the snapshot: " + response.getError());
      } catch (BridgeException e) {
        retries.after(e.getMessage());
      }
    }
    throw new InterruptedException();
  }

  private void send(List<Event> oldest) throws InterruptedException {
    Request request = request().setEvents(Events.newBuilder().addAllEvents(oldest)).build();
    Response response = exchange(events, request);
    if (response == null || response.getHelloRequired()) {
      resend();
      return;
    }
    if (response.hasAck()) {
      queue.discard(response.getAck().getLastSeq());
    } else {
      LOG.warn("The control plane did not take events: {}", response.getError());
    }
    if (!response.getError().isEmpty()) {
      Thread.sleep(BACKOFF_MIN_MS);
    }
  }

  // ---- directives

  private void takeDirectives() throws InterruptedException {
    awaitKnown();
    Response response = exchange(polls, request().setPoll(poll).build());
    poll.clearReceived();
    if (response == null || response.getHelloRequired()) {
      resend();
    } else if (!response.getError().isEmpty()) {
      LOG.warn("The control plane did not answer a poll: {}", response.getError());
      Thread.sleep(BACKOFF_MIN_MS);
    } else {
      for (Directive directive : response.getDirectives().getDirectivesList()) {
        synchronized (carrying) {
          if (!stopped) {
            poll.addReceived(directive.getId());
            carryOut(directive);
          }
        }
      }
    }
  }

  private void carryOut(Directive directive) {
    DirectiveResult result = results.computeIfAbsent(directive.getId(), id -> {
      try {
        return cluster.carryOut(directive).setDirectiveId(id).build();
      } catch (Throwable e) {
        LOG.error("Directive {} failed", id, e);
        return DirectiveResult.newBuilder().setDirectiveId(id).setReason("the plugin failed: " + e).build();
      }
    });
    if (!result.getOk()) {
      LOG.info("Directive {} was refused: {}", directive.getId(), result.getReason());
    }
    emit(Event.newBuilder().setDirectiveResult(result));
  }

  // ---- queries

  /** Forwards a REST call; from any thread that holds no lock. */
  QueryReply query(Query query) {
    slots.take(query.getUser(), query.getAdmin());
    try {
      Request request = request().setQuery(query).build();
      long begin = System.nanoTime();
      Response response;
      try {
        response = once(queries, request);
      } catch (BridgeException e) {
        if (System.nanoTime() - begin > QUERY_MS * 500_000L) {
          throw e;
        }
        response = once(queries, request);
      }
      if (!response.getError().isEmpty()) {
        throw new BridgeException("the control plane: " + response.getError());
      }
      return response.getQueryReply();
    } finally {
      slots.give(query.getUser());
    }
  }

  // ---- requests

  private Request.Builder request() {
    return Request.newBuilder().setPluginEpoch(epoch).setId(lastId.incrementAndGet())
        .setTimeMs(System.currentTimeMillis());
  }

  private static Response once(ControlPlane link, Request request) {
    if (request.getSerializedSize() > REQUEST_MAX) {
      throw new BridgeException("the control plane takes no " + (request.getSerializedSize() >> 20) + " MiB at once");
    }
    byte[] answer = link.exchange(request.toByteArray());
    try {
      Response response = Response.parseFrom(answer == null ? new byte[0] : answer);
      if (response.getId() != request.getId()) {
        throw new BridgeException("the control plane answered request " + response.getId() + " in place of "
            + request.getId());
      }
      return response;
    } catch (InvalidProtocolBufferException e) {
      throw new BridgeException("the control plane's answer is no Response of bridge.proto", e);
    }
  }

  /** Repeats the request until it is answered; null if a snapshot must be sent first. */
  private Response exchange(ControlPlane link, Request request) throws InterruptedException {
    Retries retries = new Retries();
    while (!stopped) {
      try {
        return once(link, request);
      } catch (BridgeException e) {
        retries.after(e.getMessage());
      }
      if (queue.overflowed() || !known()) {
        return null;
      }
    }
    throw new InterruptedException();
  }

  /** Waits longer after each failure, and logs each reason once. */
  private static final class Retries {
    private long backoffMs = BACKOFF_MIN_MS;
    private String said = "";

    void after(String why) throws InterruptedException {
      if (!said.equals(why)) {
        said = why;
        LOG.warn("{}; trying again", why);
      }
      Thread.sleep(backoffMs);
      backoffMs = Math.min(2 * backoffMs, BACKOFF_MAX_MS);
    }
  }

  private synchronized boolean known() {
    return taken == wanted;
  }

  private synchronized long wanted() {
    return wanted;
  }

  private synchronized void setTaken(long number) {
    taken = number;
    notifyAll();
  }

  private synchronized void awaitKnown() throws InterruptedException {
    while (taken != wanted) {
      wait();
    }
  }

  private static String version() {
    String version = Bridge.class.getPackage().getImplementationVersion();
    return version == null ? "unpackaged" : version;
  }
}
