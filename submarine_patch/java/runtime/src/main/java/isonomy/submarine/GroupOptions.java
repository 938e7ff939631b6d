package isonomy.submarine;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.commons.text.similarity.LevenshteinDistance;

/**
 * The options of a group of jobs, from {@code --conf isonomy.*}; null if not given.
 *
 * @param appScheduler one of {@link #APP_SCHEDULERS}
 * @param searchSpace the parameters of the search space file
 * @param gpusPerJob GPUs of one job (its gang); for an elastic job (1:8) the fewest
 * @param maxIterations most iterations of one job (R of Hyperband)
 * @param minIterations iterations of the lowest rung (r)
 * @param eta one of eta jobs continues to the next rung
 * @param jobs configurations to try
 * @param budgetIterations iterations of all jobs together
 * @param metric the reported value that ranks jobs; isonomy.mode says which direction is better
 * @param maxRetries how often a failed worker is started again
 * @param iterationS serial GPU-seconds of one iteration
 * @param slowdown S on one machine, in one rack, across racks
 * @param python Python executable on the NodeManagers
 * @param gpuType type of GPU asked for
 * @param priority YARN's priority of the application
 * @param isonomyConf all pairs with an isonomy.* key, as given
 * @param hadoopConf all other pairs, as given
 */
record GroupOptions(String appScheduler, Map<String, Object> searchSpace, Long gpusPerJob, Long maxIterations,
    long minIterations, long eta, Long jobs, Long budgetIterations, String metric, long seed, long maxRetries,
    Double iterationS, List<Double> slowdown, String python, String gpuType, Long priority, Map<String, String> isonomyConf,
    Map<String, String> hadoopConf) {

  static final String PREFIX = "isonomy.";
  static final List<String> KEYS = List.of("app_scheduler", "search_space", "gpus_per_job", "max_iterations",
      "min_iterations", "eta", "jobs", "budget", "metric", "seed", "max_retries", "iteration_s", "hours", "epochs",
      "slowdown",
      "target", "sampler", "parallel", "speedups", "job_type", "trial_steps", "gpu_bound", "python", "mode",
      "framework", "keep_folder", "unsaved", "tensorboard",
      "notify", "gpu_type", "mix_types", "priority", "within", "segments", "pinned", "opportunistic", "lazy_preemption");
  static final List<String> APP_SCHEDULERS = List.of("single", "hyperband", "successive_halving", "asha", "median",
      "curve", "optuna");
  private static final List<String> SEARCHES = APP_SCHEDULERS.subList(1, APP_SCHEDULERS.size());
  /** Keys that only these app schedulers use. */
  private static final Map<String, List<String>> KEYS_OF = Map.of("search_space", SEARCHES, "min_iterations", SEARCHES,
      "jobs", SEARCHES, "budget", SEARCHES, "eta", List.of("hyperband", "successive_halving", "asha"),
      "target", List.of("curve"), "sampler", List.of("optuna"), "parallel", List.of("optuna"));
  private static final Pattern NUMBER = Pattern.compile("\\s*[+-]?(\\d+\\.?\\d*|\\.\\d+)([eE][+-]?\\d+)?\\s*");
  private static final List<String> SAMPLERS = List.of("tpe", "random", "gp");
  private static final List<String> MODES = List.of("min", "max");
  private static final List<String> FRAMEWORKS = List.of("tensorflow", "pytorch", "mxnet", "keras", "command");
  private static final List<String> WITHIN = List.of("machine", "socket", "switch", "rack", "cluster");
  /** The values of within that name a cell type. */
  private static final List<String> CELL_TYPES = List.of("socket", "switch");
  /** Equal parts of a job's GPUs. */
  static final Pattern SEGMENTS = Pattern.compile("([1-9]\\d{0,2})x([1-9]\\d{0,5})(/machine|/rack)?");
  private static final List<String> SWITCH = List.of("true", "false");
  private static final int PIN_CHARS = 256;
  private static final List<Double> DEFAULT_SLOWDOWN = List.of(1.0, 1.1, 1.3);

  boolean isSearch() {
    return !appScheduler.equals("single");
  }

  /**
   * Reads {@code key=value} pairs; a mistake throws a {@link UserError} that names the key. For speed the command
   * {@code submarine} has the same rules in checks.py; tests/submarine/options.txt tests both.
   */
  static GroupOptions parse(List<String> pairs) throws UserError {
    Map<String, String> isonomy = new LinkedHashMap<>();
    Map<String, String> hadoop = new LinkedHashMap<>();
    for (String pair : pairs == null ? List.<String>of() : pairs) {
      int equals = pair.indexOf('=');
      if (equals <= 0) {
        throw new UserError("--conf " + pair + ": write key=value");
      }
      String key = pair.substring(0, equals).strip();
      Map<String, String> target = key.startsWith(PREFIX) ? isonomy : hadoop;
      if (target == isonomy && !KEYS.contains(key.substring(PREFIX.length()))) {
        throw new UserError("--conf " + key + ": unknown key; the nearest known one is " + PREFIX + nearest(key));
      }
      if (target.put(key, pair.substring(equals + 1).strip()) != null) {
        throw new UserError("--conf " + key + ": given twice");
      }
    }
    return fromValues(isonomy, hadoop);
  }

  private static GroupOptions fromValues(Map<String, String> isonomy, Map<String, String> hadoop) throws UserError {
    Values values = new Values(isonomy);
    String appScheduler = values.appScheduler();
    boolean search = !appScheduler.equals("single");
    values.checkPassedOn();
    for (String key : KEYS) {
      List<String> schedulers = KEYS_OF.getOrDefault(key, APP_SCHEDULERS);
      if (values.text(key) != null && APP_SCHEDULERS.contains(appScheduler) && !schedulers.contains(appScheduler)) {
        throw new UserError("--conf " + PREFIX + key + ": needs --conf isonomy.app_scheduler= one of "
            + String.join(", ", schedulers));
      }
    }
    Long maxIterations = values.whole("max_iterations", 1, null);
    long minIterations = values.whole("min_iterations", 1, 1L);
    if (search) {
      values.require("search_space", appScheduler);
      values.require("max_iterations", appScheduler);
      if (minIterations > maxIterations) {
        throw new UserError("--conf isonomy.min_iterations=" + minIterations + ": above isonomy.max_iterations="
            + maxIterations);
      }
    }
    Map<String, Object> space = search ? SearchSpace.load(Path.of(values.text("search_space"))) : null;
    return new GroupOptions(appScheduler, space, values.gpusPerJob(), maxIterations,
        minIterations, values.whole("eta", 2, 3L), values.whole("jobs", 1, null), values.whole("budget", 1, null),
        values.metric(), values.whole("seed", 0, 0L),
        values.whole("max_retries", 0, 3L), values.positive("iteration_s"), values.slowdown(),
        values.text("python"), values.text("gpu_type"),
        values.whole("priority", 0, null), isonomy, hadoop);
  }

  private static String nearest(String key) {
    String name = key.substring(PREFIX.length()).replace('-', '_');
    LevenshteinDistance distance = LevenshteinDistance.getDefaultInstance();
    return KEYS.stream().min((a, b) -> Integer.compare(distance.apply(name, a), distance.apply(name, b)))
        .orElseThrow();
  }

  /** Reads values and checks their types and ranges. */
  private record Values(Map<String, String> conf) {
    String text(String key) {
      String value = conf.get(PREFIX + key);
      return value == null || value.isEmpty() ? null : value;
    }

    void require(String key, String appScheduler) throws UserError {
      if (text(key) == null) {
        throw new UserError("--conf isonomy." + key + " is absent: " + appScheduler + " needs it");
      }
    }

    /** A built-in app scheduler, or one of another distribution, which has a dot and is checked by the Agent. */
    String appScheduler() throws UserError {
      String value = text("app_scheduler");
      return value != null && value.matches("\\w+(\\.\\w+)+") ? value : oneOf("app_scheduler", APP_SCHEDULERS, "single");
    }

    String oneOf(String key, List<String> allowed, String otherwise) throws UserError {
      String value = text(key);
      if (value != null && !allowed.contains(value)) {
        throw new UserError("--conf isonomy." + key + "=" + value + ": must be one of "
            + String.join(", ", allowed));
      }
      return value == null ? otherwise : value;
    }

    Long whole(String key, long least, Long otherwise) throws UserError {
      String value = text(key);
      if (value == null) {
        return otherwise;
      }
      try {
        long number = Long.parseLong(value);
        if (number >= least && number <= Integer.MAX_VALUE) {
          return number;
        }
      } catch (NumberFormatException e) {
        // reported below, together with the range
      }
      throw new UserError("--conf isonomy." + key + "=" + value + ": must be a whole number, at least " + least);
    }

    /** The fewest GPUs of a job: of 4, or 1:8. */
    Long gpusPerJob() throws UserError {
      String value = text("gpus_per_job");
      int colon = value == null ? -1 : value.indexOf(':');
      if (colon < 0) {
        return whole("gpus_per_job", 1, null);
      }
      double least = real(value.substring(0, colon));
      double most = real(value.substring(colon + 1));
      if (!(least >= 1 && most >= least && most <= Integer.MAX_VALUE && least % 1 == 0 && most % least == 0)) {
        throw new UserError("--conf isonomy.gpus_per_job=" + value
            + ": must be like 4, or 1:8 (the most a multiple of the fewest)");
      }
      if (text("within") != null && CELL_TYPES.contains(text("within"))) {
        throw new UserError("--conf isonomy.gpus_per_job=" + value + ": jobs within one " + text("within")
            + " have as many GPUs throughout");
      }
      return (long) least;
    }

    /** The name of a value that the training reports. */
    String metric() throws UserError {
      String name = text("metric");
      if (name != null && !name.matches("[A-Za-z_][A-Za-z0-9_./@-]*")) {
        throw new UserError("--conf isonomy.metric=" + name + ": must be the name of a value that the training reports,"
            + " for example val_loss");
      }
      return name == null ? "accuracy" : name;
    }

    /** Keys that only the Agent reads, from {@link GroupOptions#isonomyConf}. */
    void checkPassedOn() throws UserError {
      oneOf("sampler", SAMPLERS, null);
      oneOf("mode", MODES, null);
      oneOf("framework", FRAMEWORKS, null);
      oneOf("mix_types", SWITCH, null);
      oneOf("unsaved", SWITCH, null);
      oneOf("tensorboard", SWITCH, null);
      String folder = text("keep_folder");
      if (folder != null && (folder.startsWith("/") || folder.matches("\\./?") || List.of(folder.split("/")).contains(".."))) {
        throw new UserError("--conf isonomy.keep_folder=" + folder
            + ": must be a folder below the one where the script runs");
      }
      checkCells();
      whole("parallel", 1, null);
      if (positive("hours") != null && text("iteration_s") != null && text("max_iterations") != null) {
        throw new UserError("--conf isonomy.hours: isonomy.iteration_s and isonomy.max_iterations say it already;"
            + " leave it or one of them out");
      }
      if (whole("epochs", 1, null) != null && text("max_iterations") != null) {
        throw new UserError("--conf isonomy.epochs: isonomy.max_iterations says the end already; leave one out");
      }
      whole("trial_steps", 0, null);
      String notify = text("notify");
      if (notify != null && !notify.matches("https?://[^\\s/@]+(/\\S*)?")) {
        throw new UserError("--conf isonomy.notify=" + notify + ": must be an address like https://hooks.example.com/t1");
      }
      String bound = text("gpu_bound");
      if (bound != null && !(real(bound) >= 0 && real(bound) <= 1)) {
        throw new UserError("--conf isonomy.gpu_bound=" + bound + ": must be a number from 0 to 1");
      }
      String target = text("target");
      if (target != null && !Double.isFinite(real(target))) {
        throw new UserError("--conf isonomy.target=" + target + ": must be a number");
      }
      for (String pair : text("speedups") == null ? new String[0] : text("speedups").split(",")) {
        int equals = pair.indexOf('=');
        double speed = real(pair.substring(equals + 1));
        if (pair.isBlank()) {
          continue;
        }
        if (equals < 1 || !(speed > 0) || Double.isInfinite(speed)) {
          throw new UserError("--conf isonomy.speedups=" + text("speedups")
              + ": must be GPU types with speeds, like K80=1,V100=3.2");
        }
      }
    }

    /** Checks the keys that limit which GPUs a job takes. */
    private void checkCells() throws UserError {
      oneOf("within", WITHIN, null);
      oneOf("lazy_preemption", SWITCH, null);
      String parts = text("segments");
      boolean apart = text("gpus_per_job") != null && text("gpus_per_job").contains(":")
          || text("within") != null && CELL_TYPES.contains(text("within"));
      if (parts != null && (apart || !SEGMENTS.matcher(parts).matches())) {
        throw new UserError("--conf isonomy.segments=" + parts + ": must be like 2x4 (each on one machine) or 2x4/rack, of"
            + " jobs of one size that need no socket or switch");
      }
      String pin = text("pinned");
      if (pin != null && (pin.length() > PIN_CHARS || pin.chars().anyMatch(Character::isISOControl))) {
        throw new UserError("--conf isonomy.pinned: must be the pinned_id of a cell, up to " + PIN_CHARS
            + " characters");
      }
      if (!"true".equals(oneOf("opportunistic", SWITCH, null))) {
        return;
      }
      for (String key : List.of("pinned", "lazy_preemption")) {
        if (text(key) != null && !text(key).equals("false")) {
          throw new UserError("--conf isonomy." + key + ": an opportunistic job owns no cells;"
              + " leave it or the other out");
        }
      }
    }

    Double positive(String key) throws UserError {
      String value = text(key);
      if (value == null) {
        return null;
      }
      double number = real(value);
      if (!(number > 0) || Double.isInfinite(number)) {
        throw new UserError("--conf isonomy." + key + "=" + value + ": must be a number above 0");
      }
      return number;
    }

    /** Themis, section 4.1: S is 1 on one machine and grows with the distance. */
    List<Double> slowdown() throws UserError {
      String value = text("slowdown");
      if (value == null) {
        return DEFAULT_SLOWDOWN;
      }
      List<Double> numbers = new ArrayList<>();
      for (String part : value.split(",")) {
        numbers.add(real(part.strip()));
      }
      boolean good = numbers.size() == 3 && numbers.get(0) >= 1.0 && numbers.get(1) >= numbers.get(0)
          && numbers.get(2) >= numbers.get(1) && Double.isFinite(numbers.get(2));
      if (!good) {
        throw new UserError("--conf isonomy.slowdown=" + value + ": must be three numbers from 1.0 that do not"
            + " fall (machine, rack, cluster), for example 1.0,1.1,1.3");
      }
      return List.copyOf(numbers);
    }

    private static double real(String text) {
      return NUMBER.matcher(text).matches() ? Double.parseDouble(text) : Double.NaN;
    }
  }
}
