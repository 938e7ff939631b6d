package isonomy.nm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What a container may see is what the token's tag says, and nothing where that is not exactly its GPUs. */
class GpuUseTest {
  @Test
  void theTagOfItsGpusIsWhatItSees() {
    GpuUse use = Tokens.use(1, 2, "gpu=2,0;lease=r1.0");
    assertEquals(List.of(0, 2), use.gpuIds);
    assertEquals("0,2", use.visibleDevices());
    assertEquals("r1.0", use.lease);
    assertEquals(Tokens.id(1).toString(), use.container);
    assertFalse(use.unmanaged);
  }

  @Test
  void twoTagsOfVersion01AreRead() {
    GpuUse use = Tokens.use(1, 1, "gpu=3", "lease=r1.0");
    assertEquals("3", use.visibleDevices());
    assertEquals("r1.0", use.lease);
  }

  /** Neither GPUs of ours nor those of a container that plain CapacityScheduler placed. */
  @ParameterizedTest
  @CsvSource(delimiter = '|', textBlock = """
      1 | gpu=0,1;lease=a
      3 | gpu=0,1;lease=a
      2 | gpu=0,0;lease=a
      0 | gpu=0;lease=a
      1 | gpu=x;lease=a
      1 | gpu=-1;lease=a
      1 | gpu=0;lease=a b
      1 | gpu=
      1 | lease=a
      """)
  void aTagThatIsNotThatOfItsGpusGivesNone(int gpus, String tag) {
    GpuUse use = Tokens.use(1, gpus, tag);
    assertEquals("", use.visibleDevices());
    assertEquals("", use.lease);
    assertFalse(use.unmanaged);
  }

  @Test
  void twoTagsThatNameGpusGiveNone() {
    assertEquals("", Tokens.use(1, 1, "gpu=0;lease=a", "gpu=1;lease=b").visibleDevices());
  }

  @Test
  void gpusWithoutATagAreThoseOfPlainCapacityScheduler() {
    GpuUse use = Tokens.use(1, 2, "spark");
    assertTrue(use.unmanaged);
    assertEquals("", use.visibleDevices());
    assertFalse(Tokens.use(1, 0).unmanaged);
    assertFalse(GpuUse.of(Tokens.token(1, 2, ExecutionType.OPPORTUNISTIC), List.of()).unmanaged);
  }
}
