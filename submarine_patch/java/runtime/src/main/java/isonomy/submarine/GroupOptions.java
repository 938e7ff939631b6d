package isonomy.submarine;

import static java.util.Map.entry;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.apache.commons.text.similarity.LevenshteinDistance;

/**
 * The options of a group of jobs, from {@code --conf isonomy.*}; null if not given.
 *
 * @param appScheduler one of {@link #APP_SCHEDULERS}
 * @param gpusPerJob GPUs of one job (its gang); for an elastic job (1:8) the fewest
 * @param python Python executable on the NodeManagers
 * @param priority YARN's priority of the application
 * @param spec what isonomy-app.json says of the group, by its keys; null: the Agent's default
 * @param isonomyConf all pairs with an isonomy.* key, as given
 * @param hadoopConf all other pairs, as given
 */
record GroupOptions(String appScheduler, Long gpusPerJob, String python, Long priority, Map<String, Object> spec,
    Map<String, String> isonomyConf, Map<String, String> hadoopConf) {

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
  private static final List<String> SWITCH = List.of("true", "false");
  /** The values of keys that have few. */
  private static final Map<String, List<String>> ONE_OF = Map.of("sampler", List.of("tpe", "random", "gp"),
      "mode", List.of("min", "max"), "framework", List.of("tensorflow", "pytorch", "mxnet", "keras", "command"),
      "within", List.of("machine", "socket", "switch", "rack", "cluster"), "mix_types", SWITCH, "unsaved", SWITCH,
      "tensorboard", SWITCH, "lazy_preemption", SWITCH, "opportunistic", SWITCH);
  /** The least value of keys that are whole numbers. */
  private static final Map<String, Integer> LEAST = Map.ofEntries(entry("max_iterations", 1), entry("epochs", 1),
      entry("min_iterations", 1), entry("eta", 2), entry("jobs", 1), entry("parallel", 1), entry("trial_steps", 0),
      entry("budget", 1), entry("seed", 0), entry("max_retries", 0), entry("priority", 0));
  /** The values of within that name a cell type. */
  private static final List<String> CELL_TYPES = List.of("socket", "switch");
  /** Equal parts of a job's GPUs. */
  static final Pattern SEGMENTS = Pattern.compile("([1-9]\\d{0,2})x([1-9]\\d{0,5})(/machine|/rack|/socket|/switch)?");
  private static final int PIN_CHARS = 256;

  boolean isSearch() {
    return !appScheduler.equals("single");
  }

  /** The value of an isonomy.* key, named without the prefix. */
  String given(String key) {
    return new Values(isonomyConf).text(key);
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
      UserError.when(equals <= 0, "--conf " + pair + ": write key=value");
      String key = pair.substring(0, equals).strip();
      Map<String, String> target = key.startsWith(PREFIX) ? isonomy : hadoop;
      if (target == isonomy && !KEYS.contains(key.substring(PREFIX.length()))) {
        throw new UserError("--conf " + key + ": unknown key; the nearest known one is " + PREFIX + nearest(key));
      }
      UserError.when(target.put(key, pair.substring(equals + 1).strip()) != null, "--conf " + key + ": given twice");
    }
    Values values = new Values(isonomy);
    values.check();
    return fromValues(values, isonomy, hadoop);
  }

  private static GroupOptions fromValues(Values values, Map<String, String> isonomy, Map<String, String> hadoop)
      throws UserError {
    String appScheduler = values.appScheduler();
    Long minIterations = values.whole("min_iterations");
    Map<String, Object> spec = new LinkedHashMap<>();
    spec.put("app_scheduler", appScheduler);
    spec.put("search_space",
        appScheduler.equals("single") ? null : SearchSpace.load(Path.of(values.text("search_space"))));
    spec.put("max_iterations", values.whole("max_iterations"));
    spec.put("min_iterations", minIterations == null ? 1 : minIterations);
    spec.put("eta", values.whole("eta"));
    spec.put("jobs", values.whole("jobs"));
    spec.put("budget_iterations", values.whole("budget"));
    spec.put("metric", values.text("metric"));
    spec.put("seed", values.whole("seed"));
    spec.put("max_retries", values.whole("max_retries"));
    spec.put("iteration_s", values.text("iteration_s") == null ? null : Values.real(values.text("iteration_s")));
    spec.put("slowdown", values.text("slowdown") == null ? null : Values.reals(values.text("slowdown")));
    spec.put("gpu_type", values.text("gpu_type"));
    spec.put("conf", isonomy);
    String gpus = values.text("gpus_per_job");
    return new GroupOptions(appScheduler, gpus == null ? null : (long) Values.real(gpus.split(":")[0]),
        values.text("python"), values.whole("priority"), spec, isonomy, hadoop);
  }

  private static String nearest(String key) {
    String name = key.substring(PREFIX.length()).replace('-', '_');
    LevenshteinDistance distance = LevenshteinDistance.getDefaultInstance();
    return KEYS.stream().min((a, b) -> Integer.compare(distance.apply(name, a), distance.apply(name, b)))
        .orElseThrow();
  }

  /** The values and their rules. */
  private record Values(Map<String, String> conf) {
    String text(String key) {
      String value = conf.get(PREFIX + key);
      return value == null || value.isEmpty() ? null : value;
    }

    String appScheduler() {
      return text("app_scheduler") == null ? "single" : text("app_scheduler");
    }

    Long whole(String key) {
      return text(key) == null ? null : Long.valueOf(text(key));
    }

    /** Checks a value, if there is one. */
    void must(String key, Predicate<String> good, String be) throws UserError {
      UserError.when(text(key) != null && !good.test(text(key)),
          "--conf isonomy." + key + "=" + text(key) + ": must be " + be);
    }

    void check() throws UserError {
      // one of another distribution has a dot and is checked by the Agent
      must("app_scheduler", value -> value.matches("\\w+(\\.\\w+)+") || APP_SCHEDULERS.contains(value),
          "one of " + String.join(", ", APP_SCHEDULERS));
      for (String key : KEYS) {
        if (ONE_OF.containsKey(key)) {
          must(key, ONE_OF.get(key)::contains, "one of " + String.join(", ", ONE_OF.get(key)));
        } else if (LEAST.containsKey(key)) {
          must(key, value -> isWhole(value, LEAST.get(key)), "a whole number, at least " + LEAST.get(key));
        }
      }
      must("metric", value -> value.matches("[A-Za-z_][A-Za-z0-9_./@-]*"),
          "the name of a value that the training reports, for example val_loss");
      must("keep_folder", value -> !value.startsWith("/") && !value.matches("\\./?")
          && !List.of(value.split("/")).contains(".."), "a folder below the one where the script runs");
      must("notify", value -> value.matches("https?://[^\\s/@]+(/\\S*)?"), "an address like https://hooks.example.com/t1");
      must("gpu_bound", value -> real(value) >= 0 && real(value) <= 1, "a number from 0 to 1");
      must("target", value -> Double.isFinite(real(value)), "a number");
      must("iteration_s", Values::isPositive, "a number above 0");
      must("hours", Values::isPositive, "a number above 0");
      must("speedups", value -> Arrays.stream(value.split(",")).allMatch(Values::isSpeedup),
          "GPU types with speeds, like K80=1,V100=3.2");
      must("slowdown", Values::isSlowdown,
          "three numbers from 1.0 that do not fall (machine, rack, cluster), for example 1.0,1.1,1.3");
      checkGpus();
      for (String key : KEYS) {
        checkUsed(key);
      }
      checkEnds();
    }

    /** Checks that its app scheduler uses the key. */
    private void checkUsed(String key) throws UserError {
      List<String> schedulers = KEYS_OF.getOrDefault(key, APP_SCHEDULERS);
      UserError.when(
          text(key) != null && APP_SCHEDULERS.contains(appScheduler()) && !schedulers.contains(appScheduler()),
          "--conf " + PREFIX + key + ": needs --conf isonomy.app_scheduler= one of " + String.join(", ", schedulers));
    }

    /** Checks how many GPUs a job takes, and which. */
    private void checkGpus() throws UserError {
      boolean elastic = text("gpus_per_job") != null && text("gpus_per_job").contains(":");
      boolean inOneCell = text("within") != null && CELL_TYPES.contains(text("within"));
      must("gpus_per_job", value -> elastic ? isRange(value) : isWhole(value, 1),
          elastic ? "like 4, or 1:8 (the most a multiple of the fewest)" : "a whole number, at least 1");
      UserError.when(elastic && inOneCell,
          "--conf isonomy.gpus_per_job=" + text("gpus_per_job") + ": jobs within one " + text("within")
          + " have as many GPUs throughout");
      must("segments", value -> !elastic && !inOneCell && SEGMENTS.matcher(value).matches(),
          "like 2x4 (each on one machine), 2x4/rack or 2x4/switch, of jobs of one size, without such a within");
      String pin = text("pinned");
      UserError.when(pin != null && (pin.length() > PIN_CHARS || pin.chars().anyMatch(Character::isISOControl)),
          "--conf isonomy.pinned: must be the pinned_id of a cell, up to " + PIN_CHARS + " characters");
      for (String key : List.of("pinned", "lazy_preemption")) {
        UserError.when("true".equals(text("opportunistic")) && text(key) != null && !text(key).equals("false"),
            "--conf isonomy." + key + ": an opportunistic job owns no cells; leave it or the other out");
      }
    }

    /** Checks what says when a job ends. */
    private void checkEnds() throws UserError {
      UserError.when(text("hours") != null && text("iteration_s") != null && text("max_iterations") != null,
          "--conf isonomy.hours: isonomy.iteration_s and isonomy.max_iterations say it already;"
          + " leave it or one of them out");
      UserError.when(text("epochs") != null && text("max_iterations") != null,
          "--conf isonomy.epochs: isonomy.max_iterations says the end already; leave one out");
      for (String key : List.of("search_space", "max_iterations")) {
        UserError.when(!appScheduler().equals("single") && text(key) == null,
            "--conf isonomy." + key + " is absent: " + appScheduler() + " needs it");
      }
      UserError.when(whole("min_iterations") != null && whole("min_iterations") > whole("max_iterations"),
          "--conf isonomy.min_iterations=" + whole("min_iterations") + ": above isonomy.max_iterations="
          + whole("max_iterations"));
    }

    private static boolean isWhole(String value, int least) {
      try {
        long number = Long.parseLong(value);
        return number >= least && number <= Integer.MAX_VALUE;
      } catch (NumberFormatException e) {
        return false;
      }
    }

    private static boolean isPositive(String value) {
      return real(value) > 0 && real(value) < Double.POSITIVE_INFINITY;
    }

    private static boolean isRange(String value) {
      int colon = value.indexOf(':');
      double least = real(value.substring(0, colon));
      double most = real(value.substring(colon + 1));
      return least >= 1 && most >= least && most <= Integer.MAX_VALUE && least % 1 == 0 && most % least == 0;
    }

    private static boolean isSpeedup(String pair) {
      int equals = pair.indexOf('=');
      return pair.isBlank() || equals > 0 && isPositive(pair.substring(equals + 1));
    }

    /** Themis, section 4.1: S is 1 on one machine and grows with the distance. */
    private static boolean isSlowdown(String value) {
      List<Double> s = reals(value);
      return s.size() == 3 && s.get(0) >= 1.0 && s.get(1) >= s.get(0) && s.get(2) >= s.get(1)
          && Double.isFinite(s.get(2));
    }

    static List<Double> reals(String value) {
      return Arrays.stream(value.split(",")).map(Values::real).toList();
    }

    static double real(String text) {
      return NUMBER.matcher(text).matches() ? Double.parseDouble(text) : Double.NaN;
    }
  }
}
