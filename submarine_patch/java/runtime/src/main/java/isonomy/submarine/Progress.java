package isonomy.submarine;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** One line about an app, from the control plane's answer to {@code explain}. */
final class Progress {
  private Progress() {
  }

  /** For example {@code jobs: 2 done, 3 running; 4 GPUs; ends in ~25 min (15 min to 60 min)}; empty if nothing is known. */
  static String line(JsonNode explain) {
    StringBuilder line = new StringBuilder();
    Map<String, Long> jobs = jobsByState(explain.path("jobs"));
    if (!jobs.isEmpty()) {
      StringBuilder counts = new StringBuilder();
      jobs.forEach((state, count) -> counts.append(counts.isEmpty() ? "" : ", ").append(count).append(' ')
          .append(state));
      append(line, "jobs: " + counts);
    }
    long gpus = explain.path("app").path("gpus_held").asLong(0);
    String why = explain.path("reason").path("sentence").asText("");
    if (gpus > 0) {
      append(line, gpus == 1 ? "1 GPU" : gpus + " GPUs");
    } else if (!why.isEmpty()) {
      append(line, "waits: " + why);
    }
    append(line, estimate(explain));
    append(line, note(explain.path("jobs")));
    return line.toString();
  }

  /** The first job's note for its user; empty if no job has one. */
  private static String note(JsonNode jobs) {
    for (JsonNode job : jobs) {
      String note = job.path("note").asText("");
      if (!note.isEmpty()) {
        return job.path("job_id").asText() + ": " + note;
      }
    }
    return "";
  }

  /** The estimated start, or once it has GPUs the estimated end: the median and its bounds. */
  private static String estimate(JsonNode explain) {
    boolean runs = explain.path("app").path("gpus_held").asInt(0) > 0;
    JsonNode likely = explain.path("estimate").path(runs ? "end_s" : "start_s");
    if (!likely.path(1).isNumber()) {
      return "";
    }
    double now = explain.path("now_s").asDouble();
    String latest = likely.path(2).isNumber() ? span(likely.path(2).asDouble() - now) : "more than a week";
    return (runs ? "ends" : "starts") + " in ~" + span(likely.path(1).asDouble() - now) + " ("
        + span(likely.path(0).asDouble() - now) + " to " + latest + ")";
  }

  private static String span(double seconds) {
    long minutes = Math.max(0, Math.round(seconds / 60));
    return minutes < 100 ? minutes + " min" : String.format(Locale.ROOT, "%.1f h", seconds / 3600);
  }

  /** Jobs are a list of objects with a {@code state}, or counts by state. */
  private static Map<String, Long> jobsByState(JsonNode jobs) {
    Map<String, Long> counts = new TreeMap<>();
    if (jobs.isArray()) {
      for (JsonNode job : jobs) {
        counts.merge(job.path("state").asText("unknown"), 1L, Long::sum);
      }
    } else if (jobs.isObject()) {
      jobs.fields().forEachRemaining(entry -> {
        if (entry.getValue().isIntegralNumber() && entry.getValue().asLong() > 0) {
          counts.put(entry.getKey(), entry.getValue().asLong());
        }
      });
    }
    return counts;
  }

  private static void append(StringBuilder line, String part) {
    if (part.isEmpty()) {
      return;
    }
    line.append(line.isEmpty() ? "" : "; ").append(part);
  }
}
