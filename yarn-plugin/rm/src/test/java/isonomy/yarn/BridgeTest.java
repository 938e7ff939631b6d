package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import isonomy.wire.v1.Ack;
import isonomy.wire.v1.AppRemoved;
import isonomy.wire.v1.Directive;
import isonomy.wire.v1.DirectiveResult;
import isonomy.wire.v1.Directives;
import isonomy.wire.v1.Event;
import isonomy.wire.v1.Node;
import isonomy.wire.v1.Query;
import isonomy.wire.v1.Request;
import isonomy.wire.v1.Response;
import isonomy.wire.v1.Snapshot;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The bridge between a scheduler that does nothing and a control plane that fails as the test wants. */
@Timeout(30)
class BridgeTest {
  private final List<Request> heard = new ArrayList<>();
  private final AtomicInteger carriedOut = new AtomicInteger();
  private final AtomicInteger failures = new AtomicInteger();
  private final CountDownLatch open = new CountDownLatch(1);
  private final AtomicInteger snapshots = new AtomicInteger();
  private volatile int snapshotFailures;
  private volatile int nodes;
  private volatile boolean away;
  private volatile boolean blocked;
  private volatile boolean interrupted;
  private final CountDownLatch carrying = new CountDownLatch(1);
  private volatile CountDownLatch carryOn = new CountDownLatch(0);
  private Bridge bridge;

  private final Bridge.Cluster cluster = new Bridge.Cluster() {
    @Override
    public Snapshot snapshot(long lastSeq) {
      if (snapshots.incrementAndGet() <= snapshotFailures) {
        throw new NoSuchMethodError("as between versions (test)");
      }
      return Snapshot.newBuilder().setLastSeq(lastSeq).setReady(true)
          .addAllNodes(Collections.nCopies(nodes, Node.getDefaultInstance())).build();
    }

    @Override
    public boolean ready() {
      return true;
    }

    @Override
    public DirectiveResult.Builder carryOut(Directive directive) {
      carriedOut.incrementAndGet();
      carrying.countDown();
      try {
        carryOn.await();
      } catch (InterruptedException e) {
        interrupted = true;
      }
      return DirectiveResult.newBuilder().setOk(true).setContainerId("c1");
    }
  };

  private byte[] events(byte[] bytes) {
    Request request = parse(bytes);
    try {
      if (blocked) {
        open.await();
      }
    } catch (InterruptedException e) {
      throw new BridgeException("interrupted", e);
    }
    if (request.hasEvents() && request.getEvents().getEventsCount() == 0) {
      if (away) {
        throw new BridgeException("nobody listens (test)");
      }
      return Response.newBuilder().setId(request.getId()).setHelloRequired(true).build().toByteArray();
    }
    synchronized (heard) {
      heard.add(request);
      heard.notifyAll();
    }
    if (request.hasEvents() && failures.getAndDecrement() > 0) {
      throw new BridgeException("lost on the way (test)");
    }
    long last = request.hasEvents()
        ? request.getEvents().getEvents(request.getEvents().getEventsCount() - 1).getSeq()
        : request.getHello().getSnapshot().getLastSeq();
    return Response.newBuilder().setId(request.getId()).setAck(Ack.newBuilder().setLastSeq(last)).build().toByteArray();
  }

  /** The same directive with each poll. */
  private byte[] directives(byte[] bytes) {
    Request request = parse(bytes);
    return Response.newBuilder().setId(request.getId())
        .setDirectives(Directives.newBuilder().addDirectives(Directive.newBuilder().setId("d1")))
        .build().toByteArray();
  }

  /** No directives, after a while. */
  private byte[] noDirectives(byte[] bytes) {
    try {
      open.await(100, TimeUnit.MILLISECONDS);
    } catch (InterruptedException e) {
      throw new BridgeException("interrupted", e);
    }
    return Response.newBuilder().setId(parse(bytes).getId()).setDirectives(Directives.getDefaultInstance())
        .build().toByteArray();
  }

  private static Request parse(byte[] bytes) {
    try {
      return Request.parseFrom(bytes);
    } catch (InvalidProtocolBufferException e) {
      throw new IllegalStateException(e);
    }
  }

  private void start(ControlPlane polls, int queueSize) {
    bridge = new Bridge(cluster, this::events, polls, this::events, queueSize);
    bridge.start();
  }

  @AfterEach
  void stop() {
    bridge.close();
  }

  private static Event.Builder event(int number) {
    return Event.newBuilder().setAppRemoved(AppRemoved.newBuilder().setAppId("app" + number));
  }

  private List<Request> awaitRequests(int count) throws InterruptedException {
    synchronized (heard) {
      while (heard.size() < count) {
        heard.wait();
      }
      return List.copyOf(heard);
    }
  }

  @Test
  void aRequestIsRepeatedUnderItsIdUntilItIsAnswered() throws InterruptedException {
    failures.set(2);
    start(this::noDirectives, 10);
    awaitRequests(1);
    bridge.emit(event(1));
    List<Request> requests = awaitRequests(4);
    assertTrue(requests.get(0).hasHello());
    assertEquals(requests.get(1), requests.get(2));
    assertEquals(requests.get(1), requests.get(3));
    assertTrue(requests.get(1).getId() > requests.get(0).getId());
    bridge.emit(event(2));
    assertEquals("app2", awaitRequests(5).get(4).getEvents().getEvents(0).getAppRemoved().getAppId());
  }

  @Test
  void aSlowControlPlaneGetsASnapshotInPlaceOfTooManyEvents() throws InterruptedException {
    start(this::noDirectives, 10);
    awaitRequests(1);
    blocked = true;
    for (int i = 0; i < 1000; i++) {
      bridge.emit(event(i));
    }
    blocked = false;
    open.countDown();
    synchronized (heard) {
      while (heard.stream().noneMatch(r -> r.hasHello() && r.getHello().getSnapshot().getLastSeq() >= 1000)) {
        heard.wait();
      }
    }
    bridge.emit(event(1001));
    synchronized (heard) {
      while (!heard.get(heard.size() - 1).hasEvents()
          || heard.get(heard.size() - 1).getEvents().getEvents(0).getSeq() != 1001) {
        heard.wait();
      }
    }
  }

  @Test
  void aRepeatedDirectiveIsAnsweredAgainButCarriedOutOnce() throws InterruptedException {
    start(this::directives, 100_000);
    synchronized (heard) {
      while (heard.stream().filter(Request::hasEvents).mapToInt(r -> r.getEvents().getEventsCount()).sum() < 2) {
        heard.wait();
      }
    }
    assertEquals(1, carriedOut.get());
    Request first = awaitRequests(2).get(1);
    assertEquals("c1", first.getEvents().getEvents(0).getDirectiveResult().getContainerId());
  }

  @Test
  void whoIsClosedFinishesTheDirectiveThatItCarriesOutAndNoOther() throws InterruptedException {
    carryOn = new CountDownLatch(1);
    start(bytes -> Response.newBuilder().setId(parse(bytes).getId()).setDirectives(Directives.newBuilder()
        .addDirectives(Directive.newBuilder().setId("d1")).addDirectives(Directive.newBuilder().setId("d2")))
        .build().toByteArray(), 10);
    carrying.await();
    Thread closer = new Thread(bridge::close);
    closer.start();
    while (closer.isAlive() && closer.getState() != Thread.State.BLOCKED) {
      Thread.sleep(5);
    }
    carryOn.countDown();
    closer.join();
    assertFalse(interrupted);
    assertEquals(1, carriedOut.get());
  }

  @Test
  void whoIsStartedLateGetsWhatIsTrueThen() throws InterruptedException {
    away = true;
    start(this::noDirectives, 10);
    Thread.sleep(300);
    assertEquals(0, snapshots.get(), "nobody listens: nothing is put together");
    nodes = 3;
    away = false;
    Snapshot snapshot = awaitRequests(1).get(0).getHello().getSnapshot();
    assertEquals(3, snapshot.getNodesCount());
    assertFalse(snapshot.getRmLife().isEmpty());
  }

  @Test
  void whatTheControlPlaneWouldNotReadIsNotSent() {
    bridge = new Bridge(cluster, this::events, this::noDirectives, this::events, 10);
    Query query = Query.newBuilder().setBody(ByteString.copyFrom(new byte[96 << 20])).build();
    String why = assertThrows(BridgeException.class, () -> bridge.query(query)).getMessage();
    assertTrue(why.contains("96 MiB"), why);
    assertTrue(heard.isEmpty());
  }

  @Test
  void errorsDoNotEndTheThreads() throws InterruptedException {
    snapshotFailures = 2;
    start(this::noDirectives, 10);
    assertTrue(awaitRequests(1).get(0).hasHello());
    assertEquals(3, snapshots.get());
  }
}
