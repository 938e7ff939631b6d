package isonomy.submarine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

class GroupOptionsTest {
  @TempDir
  Path dir;
  private Path space;

  @BeforeEach
  void writeSpace() throws Exception {
    space = Files.writeString(dir.resolve("space.yaml"), """
        parameters:
          learning_rate: {type: float, min: 1e-3, max: 0.1, log: true}
          batch: {type: choice, values: [32, 64]}
          layers: {type: int, min: 1, max: 3}
        """);
  }

  static List<String> cases() throws IOException {
    Path file = Path.of(System.getProperty("basedir", "."), "../../../tests/submarine/options.txt");
    return Files.readAllLines(file).stream().filter(line -> !line.isEmpty() && !line.startsWith("#")).toList();
  }

  /** The same cases as those of the command. */
  @ParameterizedTest
  @MethodSource("cases")
  void optionsAreTakenOrRefusedByTheNameOfTheirKey(String line) throws Exception {
    String[] parts = line.replace("@space", space.toString()).split("\\|", 2);
    List<String> pairs = Stream.of(parts[0].strip().split(" ")).map(pair -> "isonomy." + pair).toList();
    if (parts.length == 1) {
      GroupOptions.parse(pairs);
      return;
    }
    UserError error = assertThrows(UserError.class, () -> GroupOptions.parse(pairs));
    assertTrue(error.getMessage().matches("--conf isonomy\\." + parts[1].strip() + "\\b.*"), error.getMessage());
  }

  @Test
  void aPlainJobIsAGroupOfOne() throws Exception {
    GroupOptions group = GroupOptions.parse(null);
    assertEquals("single", group.appScheduler());
    assertFalse(group.isSearch());
    assertNull(group.spec().get("search_space"));
    assertNull(group.spec().get("slowdown"), "the Agent knows the default");
    assertEquals(1L, group.spec().get("min_iterations"));
  }

  @Test
  void aSearchKeepsItsOptions() throws Exception {
    GroupOptions group = GroupOptions.parse(List.of("isonomy.app_scheduler=hyperband",
        "isonomy.search_space=" + space, "isonomy.max_iterations=81", "isonomy.eta=4", "isonomy.gpus_per_job=2",
        "isonomy.slowdown=1.0, 1.2, 1.5", "isonomy.iteration_s=0.25", "yarn.resourcemanager.am.max-attempts=2"));
    assertTrue(group.isSearch());
    assertEquals(List.of("learning_rate", "batch", "layers"), List.copyOf(((Map<?, ?>) group.spec().get("search_space")).keySet()));
    assertEquals(81L, group.spec().get("max_iterations"));
    assertEquals(4L, group.spec().get("eta"));
    assertEquals(2, group.gpusPerJob());
    assertEquals(List.of(1.0, 1.2, 1.5), group.spec().get("slowdown"));
    assertEquals(0.25, group.spec().get("iteration_s"));
    assertEquals("2", group.hadoopConf().get("yarn.resourcemanager.am.max-attempts"));
    assertFalse(group.isonomyConf().containsKey("yarn.resourcemanager.am.max-attempts"));
  }

  @Test
  void anElasticJobHasItsFewestGpusAndTheAgentReadsTheRest() throws Exception {
    GroupOptions group = GroupOptions.parse(List.of("isonomy.gpus_per_job=2:8"));
    assertEquals(2, group.gpusPerJob());
    assertEquals("2:8", group.isonomyConf().get("isonomy.gpus_per_job"));
  }

  @Test
  void aSchedulerOfAnotherDistributionIsTheAgentsToKnow() throws Exception {
    List<String> pairs = List.of("isonomy.search_space=" + space, "isonomy.max_iterations=9");
    List<String> acme = new ArrayList<>(pairs);
    acme.add("isonomy.app_scheduler=acme.waves");
    assertEquals("acme.waves", GroupOptions.parse(acme).appScheduler());
    List<String> odd = new ArrayList<>(pairs);
    odd.add("isonomy.app_scheduler=acme.; rm");
    assertThrows(UserError.class, () -> GroupOptions.parse(odd));
  }

  @ParameterizedTest
  @CsvSource(delimiter = '|', textBlock = """
      isonomy.max_iteration=5             | --conf isonomy.max_iteration: unknown key; the nearest known one is isonomy.max_iterations
      isonomy.gpus-per-job=2              | --conf isonomy.gpus-per-job: unknown key; the nearest known one is isonomy.gpus_per_job
      isonomy.app_scheduler=hyperbandd    | --conf isonomy.app_scheduler=hyperbandd: must be one of single, hyperband, successive_halving, asha, median, curve, optuna
      isonomy.gpus_per_job=0              | --conf isonomy.gpus_per_job=0: must be a whole number, at least 1
      isonomy.gpus_per_job=8:1            | --conf isonomy.gpus_per_job=8:1: must be like 4, or 1:8 (the most a multiple of the fewest)
      isonomy.gpus_per_job=2:7            | --conf isonomy.gpus_per_job=2:7: must be like 4, or 1:8 (the most a multiple of the fewest)
      isonomy.gpus_per_job=1:             | --conf isonomy.gpus_per_job=1:: must be like 4, or 1:8 (the most a multiple of the fewest)
      isonomy.seed=x                      | --conf isonomy.seed=x: must be a whole number, at least 0
      isonomy.iteration_s=NaN             | --conf isonomy.iteration_s=NaN: must be a number above 0
      isonomy.eta=3                       | --conf isonomy.eta: needs --conf isonomy.app_scheduler= one of hyperband, successive_halving, asha
      isonomy.speedups=K80                | --conf isonomy.speedups=K80: must be GPU types with speeds, like K80=1,V100=3.2
      isonomy.gpu_bound=1.5               | --conf isonomy.gpu_bound=1.5: must be a number from 0 to 1
      isonomy.priority=-1                 | --conf isonomy.priority=-1: must be a whole number, at least 0
      isonomy.within=room                 | --conf isonomy.within=room: must be one of machine, socket, switch, rack, cluster
      isonomy.opportunistic=yes           | --conf isonomy.opportunistic=yes: must be one of true, false
      isonomy.trial_steps=-1              | --conf isonomy.trial_steps=-1: must be a whole number, at least 0
      isonomy.app_scheduler=hyperband     | --conf isonomy.search_space is absent: hyperband needs it
      isonomy.metric                      | --conf isonomy.metric: write key=value
      """)
  void mistakesAreNamed(String pair, String message) {
    UserError error = assertThrows(UserError.class, () -> GroupOptions.parse(List.of(pair)));
    assertEquals(message, error.getMessage());
  }

  @ParameterizedTest
  @CsvSource(delimiter = '|', textBlock = """
      isonomy.sampler=cmaes | --conf isonomy.sampler=cmaes: must be one of tpe, random, gp
      isonomy.parallel=0    | --conf isonomy.parallel=0: must be a whole number, at least 1
      isonomy.target=high   | --conf isonomy.target=high: must be a number
      isonomy.notify=ftp://x | --conf isonomy.notify=ftp://x: must be an address like https://hooks.example.com/t1
      """)
  void whatOnlyTheAgentReadsIsCheckedToo(String pair, String message) {
    UserError error = assertThrows(UserError.class, () -> GroupOptions.parse(List.of("isonomy.app_scheduler=optuna",
        "isonomy.search_space=" + space, "isonomy.max_iterations=9", pair)));
    assertEquals(message, error.getMessage());
  }

  @Test
  void thePriorityIsYarns() throws Exception {
    assertEquals(7, GroupOptions.parse(List.of("isonomy.priority=7")).priority());
    assertNull(GroupOptions.parse(List.of()).priority());
  }

  @ParameterizedTest
  @CsvSource({"isonomy.pinned=corner", "isonomy.lazy_preemption=true"})
  void whoWantsNoGuaranteeOwnsNoCells(String pair) {
    UserError error = assertThrows(UserError.class,
        () -> GroupOptions.parse(List.of("isonomy.opportunistic=true", pair)));
    assertTrue(error.getMessage().contains("an opportunistic job owns no cells"), error.getMessage());
  }

  @ParameterizedTest
  @CsvSource({"'1.0,1.1'", "'1.2,1.1,1.3'", "'0.5,1,1'", "'a,b,c'", "'1,1,Infinity'"})
  void slowdownIsThreeNumbersThatDoNotFall(String value) {
    assertThrows(UserError.class, () -> GroupOptions.parse(List.of("isonomy.slowdown=" + value)));
  }

  @ParameterizedTest
  @CsvSource(delimiter = '|', textBlock = """
      [1, 2                                              | not YAML
      lr: {type: float, min: 0, max: 1}                  | needs 'parameters:'
      parameters: {}                                     | at least one parameter
      parameters: {lr: {type: real}}                     | type is 'real'; it must be float, int or choice
      parameters: {lr: {type: float, min: 0}}            | 'max' must be a number
      parameters: {lr: {type: float, min: 2, max: 1}}    | min 2 is above max 1
      parameters: {lr: {type: int, min: 0.5, max: 1}}    | 'min' must be a whole number
      parameters: {lr: {type: float, min: 0, max: 1, log: true}} | min must be above 0
      parameters: {lr: {type: choice, values: []}}       | at least one value
      parameters: {lr: {type: choice, value: [1]}}       | unknown key 'value'
      """)
  void aBadSearchSpaceNamesFileAndParameter(String yaml, String part) throws Exception {
    Path file = Files.writeString(dir.resolve("bad.yaml"), yaml);
    UserError error = assertThrows(UserError.class, () -> SearchSpace.load(file));
    assertTrue(error.getMessage().contains(part), error.getMessage());
    assertTrue(error.getMessage().startsWith(file.toString()), error.getMessage());
    assertFalse(error.getMessage().contains("\n"), error.getMessage());
  }

  @Test
  void aMissingSearchSpaceNamesTheFile() {
    UserError error = assertThrows(UserError.class, () -> SearchSpace.load(dir.resolve("none.yaml")));
    assertTrue(error.getMessage().contains("none.yaml: cannot be read"), error.getMessage());
  }
}
