package isonomy.yarn;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import isonomy.wire.v1.Ack;
import isonomy.wire.v1.Application;
import isonomy.wire.v1.Ask;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Directives;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.NodeDown;
import isonomy.wire.v1.Query;
import isonomy.wire.v1.QueryReply;
import isonomy.wire.v1.Queue;
import isonomy.wire.v1.Request;
import isonomy.wire.v1.Response;
import isonomy.wire.v1.Snapshot;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/** A control plane that records what it hears and decides what the test says. */
final class ScriptedControlPlane implements ControlPlane {
  private static final long PATIENCE_MS = 20_000;
  private final LinkedBlockingQueue<Directive> directives = new LinkedBlockingQueue<>();
  private final List<Event> events = new ArrayList<>();
  private final List<Snapshot> snapshots = new ArrayList<>();
  private String epoch = "";
  private long lastId;
  private boolean away;
  private Query lastQuery;

  @Override
  public byte[] exchange(byte[] bytes) {
    try {
      Request request = Request.parseFrom(bytes);
      return answer(request).setId(request.getId()).build().toByteArray();
    } catch (InvalidProtocolBufferException | InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  private Response.Builder answer(Request request) throws InterruptedException {
    Response.Builder response = Response.newBuilder();
    synchronized (this) {
      if (away) {
        throw new BridgeException("no answer from the control plane (test)");
      }
      if (request.hasQuery()) {
        lastQuery = request.getQuery();
        return response.setQueryReply(QueryReply.newBuilder().setStatus(200).setContentType("application/json")
            .setBody(ByteString.copyFromUtf8("{\"path\": \"" + request.getQuery().getPath() + "\"}"))
            .putHeaders("X-Content-Type-Options", "nosniff").putHeaders("Cache-Control", "no-store"));
      }
      if (request.hasHello()) {
        epoch = request.getPluginEpoch();
        snapshots.add(request.getHello().getSnapshot());
        notifyAll();
        return response.setAck(Ack.newBuilder().setLastSeq(request.getHello().getSnapshot().getLastSeq()));
      }
      if (!request.getPluginEpoch().equals(epoch)) {
        return response.setHelloRequired(true);
      }
      if (request.hasEvents()) {
        lastId = request.getId();
        events.addAll(request.getEvents().getEventsList());
        notifyAll();
        return response.setAck(Ack.newBuilder().setLastSeq(events.isEmpty() ? 0 : events.get(events.size() - 1).getSeq()));
      }
    }
    Directives.Builder some = Directives.newBuilder();
    Directive first = directives.poll(request.getPoll().getWaitMs() / 4, TimeUnit.MILLISECONDS);
    if (first != null) {
      some.addDirectives(first);
    }
    return response.setDirectives(some);
  }

  void send(Directive directive) {
    directives.add(directive);
  }

  /** Sends a directive and returns how the plugin says that it ended. */
  DirectiveResult carriedOut(Directive directive) throws InterruptedException {
    int from = count();
    send(directive);
    return await(from, e -> e.hasDirectiveResult()
        && e.getDirectiveResult().getDirectiveId().equals(directive.getId())).getDirectiveResult();
  }

  /** The first event like this, also if it came before. */
  Event await(Predicate<Event> like) throws InterruptedException {
    return await(0, like);
  }

  /** Until such an event came, or a snapshot that has it already: which of them depends on when the plugin says hello. */
  synchronized void awaitEither(Predicate<Event> event, Predicate<Snapshot> snapshot) throws InterruptedException {
    long end = System.currentTimeMillis() + PATIENCE_MS;
    while (events.stream().noneMatch(event) && snapshots.stream().noneMatch(snapshot)) {
      long left = end - System.currentTimeMillis();
      if (left <= 0) {
        throw new AssertionError("no such event among " + events + ", and no such snapshot");
      }
      wait(left);
    }
  }

  synchronized Event await(int from, Predicate<Event> like) throws InterruptedException {
    long end = System.currentTimeMillis() + PATIENCE_MS;
    for (int i = from; ; i++) {
      while (i >= events.size()) {
        long left = end - System.currentTimeMillis();
        if (left <= 0) {
          throw new AssertionError("no such event among " + events);
        }
        wait(left);
      }
      if (like.test(events.get(i))) {
        return events.get(i);
      }
    }
  }

  synchronized int count() {
    return events.size();
  }

  synchronized Snapshot awaitSnapshot(int number) throws InterruptedException {
    long end = System.currentTimeMillis() + PATIENCE_MS;
    while (snapshots.size() < number) {
      long left = end - System.currentTimeMillis();
      if (left <= 0) {
        throw new AssertionError("only " + snapshots.size() + " snapshots came");
      }
      wait(left);
    }
    return snapshots.get(number - 1);
  }

  /** What it knows: its newest snapshot, and what the events since then change. Taken out is as good as never there. */
  synchronized List<Set<?>> known() {
    Snapshot newest = snapshots.get(snapshots.size() - 1);
    Map<String, Node> nodes = by(newest.getNodesList(), Node::getNodeId);
    Map<String, NodeDown> down = by(newest.getDownList(), n -> host(n.getNodeId()));
    Map<String, Application> apps = by(newest.getApplicationsList(), Application::getAppId);
    Collection<Queue> queues = newest.getQueuesList();
    Map<Object, Ask> asks = by(newest.getAsksList(), ScriptedControlPlane::key);
    for (Event event : events) {
      if (event.getSeq() <= newest.getLastSeq()) {
        continue;
      }
      switch (event.getKindCase()) {
        case NODE_UP:
          nodes.put(event.getNodeUp().getNodeId(), event.getNodeUp());
          down.remove(host(event.getNodeUp().getNodeId()));
          break;
        case NODE_DOWN:
          nodes.remove(event.getNodeDown().getNodeId());
          down.put(host(event.getNodeDown().getNodeId()), event.getNodeDown());
          break;
        case APP_ADDED:
          apps.put(event.getAppAdded().getAppId(), event.getAppAdded());
          break;
        case APP_UPDATED:
          apps.put(event.getAppUpdated().getAppId(), event.getAppUpdated());
          break;
        case ATTEMPT_ADDED:
          apps.computeIfPresent(event.getAttemptAdded().getAppId(),
              (id, app) -> app.toBuilder().setAttemptId(event.getAttemptAdded().getAttemptId()).build());
          break;
        case ATTEMPT_REMOVED:
          asks.values().removeIf(ask -> ask.getAttemptId().equals(event.getAttemptRemoved().getAttemptId()));
          break;
        case APP_REMOVED:
          apps.remove(event.getAppRemoved().getAppId());
          break;
        case UNASKED:
          queues = event.getUnasked().getQueuesList();
          down = by(event.getUnasked().getDownList(), n -> host(n.getNodeId()));
          break;
        case ASK:
          asks.put(key(event.getAsk()), event.getAsk());
          break;
        default:
          break;
      }
    }
    asks.values().removeIf(ask -> ask.getCount() == 0);
    return all(nodes.values(), down.values(), apps.values(), asks.values(), queues);
  }

  /** The same of a snapshot alone. */
  static List<Set<?>> known(Snapshot s) {
    return all(s.getNodesList(), s.getDownList(), s.getApplicationsList(), s.getAsksList(), s.getQueuesList());
  }

  private static List<Set<?>> all(
      Collection<Node> nodes, Collection<NodeDown> down, Collection<Application> apps, Collection<Ask> asks,
      Collection<Queue> queues) {
    return List.of(Set.copyOf(nodes), down.stream()
        .filter(n -> !Set.of("DECOMMISSIONED", "SHUTDOWN").contains(n.getReason())).collect(Collectors.toSet()),
        Set.copyOf(apps), Set.copyOf(asks), Set.copyOf(queues));
  }

  private static <K, V> Map<K, V> by(List<V> values, Function<V, K> key) {
    Map<K, V> map = new HashMap<>();
    values.forEach(value -> map.put(key.apply(value), value));
    return map;
  }

  private static String host(String nodeId) {
    return nodeId.substring(0, nodeId.lastIndexOf(':'));
  }

  private static Object key(Ask ask) {
    return List.of(ask.getAttemptId(), ask.getAllocationRequestId(), ask.getPriority(), ask.getGpus());
  }

  synchronized int snapshots() {
    return snapshots.size();
  }

  /** As if the control plane had been started again. */
  synchronized void forget() {
    epoch = "";
  }

  synchronized void setAway(boolean value) {
    away = value;
  }

  synchronized Query lastQuery() {
    return lastQuery;
  }
}
