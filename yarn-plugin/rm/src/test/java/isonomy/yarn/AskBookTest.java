package isonomy.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import isonomy.wire.v1.Ask;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class AskBookTest {
  private static final ApplicationAttemptId ATTEMPT =
      ApplicationAttemptId.newInstance(ApplicationId.newInstance(1L, 1), 1);
  private static final SchedulerRequestKey KEY = key(3, 7);

  private final List<Ask> told = new ArrayList<>();
  private final AskBook book = new AskBook(told::add);
  private final Map<String, Integer> waiting = new HashMap<>();
  private final AskBook.Pending pending =
      (partition, containers, each) -> waiting.merge(partition, containers * Gpus.of(each), Integer::sum);

  private static SchedulerRequestKey key(int priority, long allocationRequestId) {
    return new SchedulerRequestKey(Priority.newInstance(priority), allocationRequestId, null);
  }

  @BeforeEach
  void open() {
    book.open(ATTEMPT, pending);
  }

  private static Resource gpus(int gpus, int memoryMb) {
    return Resource.newInstance(memoryMb, 1, Map.of(Gpus.RESOURCE, (long) gpus));
  }

  private static ResourceRequest request(String where, Resource what, int count, boolean relax) {
    ResourceRequest r = ResourceRequest.newInstance(Priority.newInstance(3), where, what, count, relax);
    r.setAllocationRequestId(7);
    return r;
  }

  private void ask(int count, int notPulled) {
    book.ask(ATTEMPT, List.of(request("*", gpus(2, 512), count, true)), List.of(), Map.of(KEY, notPulled));
  }

  private int lastCount() {
    return told.get(told.size() - 1).getCount();
  }

  @Test
  void countsAreAbsolute() {
    ask(3, 0);
    ask(3, 0);
    assertEquals(3, book.find(ATTEMPT, KEY).count);
    assertEquals(1, book.all().size());
    assertEquals(2, book.all().get(0).getGpus());
    ask(1, 0);
    assertEquals(1, lastCount());
    ask(0, 0);
    assertEquals(0, lastCount());
    assertNull(book.find(ATTEMPT, KEY));
  }

  @Test
  void placedUntilNothingIsLeft() {
    ask(2, 0);
    book.placed(ATTEMPT, KEY);
    assertEquals(1, lastCount());
    book.placed(ATTEMPT, KEY);
    assertNull(book.find(ATTEMPT, KEY));
    book.restored(ATTEMPT, KEY);
    assertNotNull(book.find(ATTEMPT, KEY));
  }

  @Test
  void aReAskDoesNotCountWhatTheMasterHasNotSeenYet() {
    ask(2, 0);
    book.placed(ATTEMPT, KEY);
    ask(2, 1);
    assertEquals(1, book.find(ATTEMPT, KEY).count);
  }

  @Test
  void recoveredContainersAreNotPlacedAgainInWhicheverOrderTheyCome() {
    ask(1, 0);
    book.recovered(ATTEMPT, KEY);
    assertNull(book.find(ATTEMPT, KEY));
    assertEquals(0, lastCount());
    ask(1, 0);
    assertEquals(1, book.find(ATTEMPT, KEY).count, "a second ask means it");

    book.close(ATTEMPT);
    book.open(ATTEMPT, pending);
    book.recovered(ATTEMPT, KEY);
    ask(1, 0);
    assertNull(book.find(ATTEMPT, KEY));
  }

  @Test
  void aNewCapabilityReplacesTheOld() {
    ask(2, 0);
    book.ask(ATTEMPT, List.of(
        request("*", gpus(4, 512), 1, true), request("*", gpus(2, 512), 0, true)), List.of(), Map.of());
    assertEquals(1, book.all().size());
    assertEquals(4, book.all().get(0).getGpus());
    assertTrue(told.stream().anyMatch(a -> a.getGpus() == 2 && a.getCount() == 0));
  }

  @Test
  void strictLocalityIsTold() {
    book.ask(ATTEMPT, List.of(
        request("*", gpus(1, 512), 1, false),
        request("/rack-a", gpus(1, 512), 1, false),
        request("host-b", gpus(1, 512), 1, true)), List.of(), Map.of());
    assertEquals(List.of("host-b"), book.all().get(0).getOnlyOnList());
  }

  @Test
  void thePlacesToldOfAnAttemptAreBounded() {
    for (int key = 0; key < 40; key++) {
      List<ResourceRequest> asks = new ArrayList<>(List.of(request("*", gpus(1, 512), 1, false)));
      for (int k = 0; k < 100; k++) {
        asks.add(request("host" + k + "-" + "x".repeat(1000), gpus(1, 512), 1, true));
      }
      for (ResourceRequest r : asks) {
        r.setAllocationRequestId(key);
      }
      book.ask(ATTEMPT, asks, List.of(), Map.of());
    }
    assertEquals(40, book.all().size());
    assertTrue(book.all().stream().noneMatch(ask -> ask.getOnlyOnList().isEmpty()), "an ask without places is for all");
    assertTrue(told.stream().anyMatch(ask -> ask.getOnlyOnCount() == 100));
    int length = book.all().stream().flatMap(ask -> ask.getOnlyOnList().stream()).mapToInt(String::length).sum();
    assertTrue(length <= AskBook.PLACES_MAX + 40 * 256, () -> length + " characters");
  }

  @Test
  void asksUnderTooManyKeysAtCapacitySchedulerAreReportedInPart() {
    List<ResourceRequest> asks = new ArrayList<>();
    for (int i = 0; i < 2 * AskBook.KEYS_MAX; i++) {
      asks.add(request("*", gpus(1, 512), 1, true));
      asks.get(i).setAllocationRequestId(i);
    }
    book.close(ATTEMPT);
    book.open(ATTEMPT, null);
    book.replace(ATTEMPT, asks);
    book.replace(ATTEMPT, asks);
    assertEquals(AskBook.KEYS_MAX, told.size());
    assertEquals(AskBook.KEYS_MAX, book.all().size());
  }

  @Test
  void anEndedAttemptAsksNothing() {
    ask(2, 0);
    book.close(ATTEMPT);
    assertTrue(book.all().isEmpty());
    ask(2, 0);
    assertTrue(book.all().isEmpty());
  }

  @Test
  void onlyWhatChangesIsTold() {
    ask(2, 0);
    ask(2, 0);
    assertEquals(1, told.size());
    ask(3, 1);
    assertEquals(1, told.size(), "one more of which one is there is as many as before");
  }

  @Test
  void aHugeCountIsToldByAndBy() {
    ask(Integer.MAX_VALUE, 0);
    assertEquals(AskBook.TOLD_MAX, lastCount());
    book.placed(ATTEMPT, KEY);
    assertEquals(AskBook.TOLD_MAX, book.all().get(0).getCount());
    assertEquals(Integer.MAX_VALUE - 1, book.find(ATTEMPT, KEY).count);
    ask(AskBook.TOLD_MAX, 0);
    book.placed(ATTEMPT, KEY);
    assertEquals(AskBook.TOLD_MAX - 1, lastCount());
  }

  @Test
  void tooManyKeysAreRefusedWithTheirNumber() {
    Set<SchedulerRequestKey> keys = new HashSet<>();
    for (int i = 0; i < AskBook.KEYS_MAX; i++) {
      keys.add(key(3, i));
    }
    assertNull(book.refusal(ATTEMPT, keys));
    ask(1, 0);
    assertNull(book.refusal(ATTEMPT, keys), "the same key again");
    keys.add(key(4, 1));
    String why = book.refusal(ATTEMPT, keys);
    assertTrue(why.contains("under 4097 different") && why.contains("at most 4096"), why);
  }

  @Test
  void whatIsServedDoesNotCountAgainstTheNumberOfKeys() {
    for (int i = 0; i < 2 * AskBook.KEYS_MAX; i++) {
      ResourceRequest request = request("*", gpus(2, 512), 1, true);
      request.setAllocationRequestId(i);
      assertNull(book.refusal(ATTEMPT, Set.of(key(3, i))));
      book.ask(ATTEMPT, List.of(request), List.of(), Map.of());
      if (i > 0) {
        book.placed(ATTEMPT, key(3, i));
      }
    }
    assertEquals(1, book.all().size());
    book.restored(ATTEMPT, key(3, 1));
    assertNull(book.find(ATTEMPT, key(3, 1)), "forgotten");
    book.restored(ATTEMPT, key(3, 2 * AskBook.KEYS_MAX - 1));
    assertEquals(2, book.all().size());
  }

  @Test
  void whatIsOutstandingIsPendingInTheQueuesMetrics() {
    ask(3, 0);
    assertEquals(Map.of("", 6), waiting);
    book.placed(ATTEMPT, KEY);
    assertEquals(Map.of("", 6), waiting, "YARN itself takes a placed container out");
    waiting.merge("", -2, Integer::sum);
    ask(1, 0);
    assertEquals(Map.of("", 2), waiting);
    book.restored(ATTEMPT, KEY);
    assertEquals(Map.of("", 4), waiting);
    ResourceRequest labelled = request("*", gpus(2, 512), 3, true);
    labelled.setNodeLabelExpression("fast");
    book.ask(ATTEMPT, List.of(labelled), List.of(), Map.of());
    assertEquals(Map.of("", 0, "fast", 6), waiting);
    assertEquals("fast", book.find(ATTEMPT, KEY).partition());
    Map<String, Integer> other = new HashMap<>();
    book.open(ATTEMPT, (partition, containers, each) -> other.merge(partition, containers, Integer::sum));
    assertEquals(Map.of("", 0, "fast", 0), waiting);
    assertEquals(Map.of("fast", 3), other);
    book.close(ATTEMPT);
    assertEquals(Map.of("fast", 0), other);
  }

  @Test
  void askedBackItIsWhatIsStillOutstanding() {
    ask(3, 0);
    book.placed(ATTEMPT, KEY);
    List<ResourceRequest> back = new ArrayList<>();
    book.giveBack(ATTEMPT, back, new ArrayList<>());
    assertEquals(1, back.size());
    assertEquals(2, back.get(0).getNumContainers());
    assertEquals(7, back.get(0).getAllocationRequestId());
    assertTrue(book.all().isEmpty());
  }

  @Test
  void whatWaitsAtCapacitySchedulerIsOnlyReported() {
    book.open(ATTEMPT, null);
    book.replace(ATTEMPT, List.of(request("*", gpus(2, 512), 3, true)));
    assertEquals(3, lastCount());
    book.recovered(ATTEMPT, KEY);
    book.restored(ATTEMPT, KEY);
    book.open(ATTEMPT, null);
    assertEquals(1, told.size());
    assertEquals(3, book.all().get(0).getCount());
    assertTrue(waiting.isEmpty(), "CapacityScheduler counts it");
    book.open(ATTEMPT, pending);
    assertTrue(book.all().isEmpty(), "it comes again, to be held back");

    book.open(ATTEMPT, null);
    book.replace(ATTEMPT, List.of(request("*", gpus(2, 512), 3, true)));
    List<ResourceRequest> back = new ArrayList<>();
    book.giveBack(ATTEMPT, back, new ArrayList<>());
    assertTrue(back.isEmpty(), "it is there");
  }
}
