package isonomy.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** A container's tags name its GPUs, or nothing does. */
class GpuTagTest {
  @Test
  void theTagsAreThoseThatEveryVersionReads() {
    assertEquals(Set.of("gpu=0,2", "lease=r1.2.0"), GpuTag.of(List.of(2, 0), "r1.2.0"));
    assertEquals(List.of(0, 2), GpuTag.read(GpuTag.of(List.of(2, 0), "r1.2.0"), 2).gpuIds());
  }

  @Test
  void oneTagMaySayGpusAndLease() {
    GpuTag tag = GpuTag.read(Set.of("gpu=2,0;lease=r1.2.0", "the app's own"), 2);
    assertEquals(List.of(0, 2), tag.gpuIds());
    assertEquals("0,2", GpuTag.joined(tag.gpuIds()));
    assertEquals("r1.2.0", tag.lease());
  }

  @Test
  void twoTagsSayThem() {
    GpuTag tag = GpuTag.read(Set.of("gpu=1,3", "lease=lease-5"), 2);
    assertEquals(List.of(1, 3), tag.gpuIds());
    assertEquals("lease-5", tag.lease());
    assertEquals("", GpuTag.read(Set.of("gpu=1,3"), 2).lease());
  }

  @Test
  void onlyExactlyTheGpusOfTheResourceCount() {
    Set<String> four = Set.of("gpu=0,1,2,3;lease=L");
    assertEquals(4, GpuTag.read(four, 4).gpuIds().size());
    assertEquals(4, GpuTag.read(four).gpuIds().size());
    for (int gpus : new int[] {0, 1, 3, 5}) {
      assertNull(GpuTag.read(four, gpus), "with " + gpus + " GPUs");
    }
    assertNull(GpuTag.read(Set.of("gpu=1,1;lease=L"), 2), "the same GPU twice");
  }

  @Test
  void whatIsNotOursIsNothing() {
    for (Set<String> tags : List.of(
        Set.<String>of(), Set.of("gpu="), Set.of("gpu=x"), Set.of("gpu=0;rm"), Set.of("gpu=0;lease=a\"b"), Set.of("gpu=-1"),
        Set.of("gpu=0;lease=a\nb"), Set.of("gpu=0,"), Set.of("gpu=123456"), Set.of("gpu=0;lease=a;lease=b"), Set.of("GPU=0"),
        Set.of("gpu=0", "gpu=1"), Set.of("gpu=0;lease=a", "gpu=1;lease=b"), Set.of("lease=a"))) {
      assertNull(GpuTag.read(tags, 1), tags.toString());
    }
    assertNull(GpuTag.read(null, 1));
    assertNull(GpuTag.read(Set.of("gpu=" + "0,".repeat(100_000) + "0"), 1), "bounded");
  }

  @Test
  void aTagThatCouldNotBeReadIsNotMade() {
    assertThrows(IllegalArgumentException.class, () -> GpuTag.of(List.of(0), "a b"));
    assertThrows(IllegalArgumentException.class, () -> GpuTag.of(List.of(), "a"));
    assertThrows(IllegalArgumentException.class, () -> GpuTag.of(List.of(1, 1), "a"));
  }

  @Test
  void mastersMayNotWriteOurTags() {
    assertTrue(GpuTag.isReserved("gpu=0"));
    assertTrue(GpuTag.isReserved("lease=x"));
    assertFalse(GpuTag.isReserved("gpus"));
    assertFalse(GpuTag.isReserved("training"));
  }
}
