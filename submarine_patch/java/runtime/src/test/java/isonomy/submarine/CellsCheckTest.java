package isonomy.submarine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class CellsCheckTest {
  private static final String CELLS = """
      {"cell_types": {"switch": 2, "socket": 4},
       "virtual_clusters": {
         "root.prod": {"cells": [{"pinned": "corner", "gpus": 4}, {"pinned": null, "gpus": 8}]},
         "research": {"cells": [{"pinned": "door", "gpus": 8}]}}}
      """;

  @Test
  void whatTheQueueOwnsIsTaken() throws Exception {
    check("root.prod", 4, "corner", "socket");
    check("root.research", 8, "door", null);
    check("root.prod", 2, null, "switch");
  }

  @ParameterizedTest
  @CsvSource(delimiter = '|', nullValues = "-", textBlock = """
      root.prod     | 4 | door   | -      | --conf isonomy.pinned=door: the pinned cells of root.prod are corner
      root.other    | 4 | corner | -      | --conf isonomy.pinned=corner: the pinned cells of root.other are none
      root.prod     | 8 | corner | -      | --conf isonomy.pinned=corner: a job asks for 8 GPUs, the cell has 4
      root.prod     | 4 | -      | switch | --conf isonomy.within=switch: a job asks for 4 GPUs, a switch has at most 2
      root.prod     | 4 | -      | pod    | --conf isonomy.within=pod: no cells of this type are known; the cells file has socket, switch
      """)
  void whatCannotBeIsRefusedInOneLine(String queue, long gpus, String pinned, String within, String message) {
    assertEquals(message,
        assertThrows(UserError.class, () -> check(queue, gpus, pinned, within)).getMessage());
  }

  @Test
  void withoutACellsFileNothingIsPinned() throws Exception {
    var nothing = new ObjectMapper().readTree("{\"virtual_clusters\": {}, \"cell_types\": {}}");
    assertEquals("--conf isonomy.within=switch: no cells of this type are known; the cells file has none",
        assertThrows(UserError.class, () -> CellsCheck.checkCells(nothing, "root.a", 1, null, "switch")).getMessage());
  }

  @Test
  void aPriorityThatYarnWouldCutIsRefused() throws Exception {
    Configuration silent = new YarnConfiguration();
    CellsCheck.checkPriority(5L, silent);
    Configuration ten = new Configuration(silent);
    ten.setInt(YarnConfiguration.MAX_CLUSTER_LEVEL_APPLICATION_PRIORITY, 10);
    CellsCheck.checkPriority(10L, ten);
    CellsCheck.checkPriority(null, ten);
    assertEquals("--priority 11: the cluster's highest is 10 (yarn.cluster.max-application-priority in yarn-site.xml)",
        assertThrows(UserError.class, () -> CellsCheck.checkPriority(11L, ten)).getMessage());
  }

  private static void check(String queue, long gpus, String pinned, String within) throws Exception {
    CellsCheck.checkCells(new ObjectMapper().readTree(CELLS), queue, gpus, pinned, within);
  }
}
