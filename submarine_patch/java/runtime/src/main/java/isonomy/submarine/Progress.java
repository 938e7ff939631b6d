package isonomy.submarine;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** One line about an app, from the control plane's answer to {@code explain}. */
final class Progress {
  private Progress() {
  }

  /** For example {@code jobs: 2 done, 3 running; rho 1.42; waits: NotOffered}; empty if nothing is known. */
  static String line(JsonNode explain) {
    StringBuilder line = new StringBuilder();
    Map<String, Long> jobs = jobsByState(explain.path("jobs"));
    if (!jobs.isEmpty()) {
      StringBuilder counts = new StringBuilder();
      jobs.forEach((state, count) -> counts.append(counts.isEmpty() ? "" : ", ").append(count).append(' ')
          .append(state));
      append(line, "jobs: " + counts);
    }
    JsonNode rho = explain.path("rho").path("rho");
    if (rho.isNumber()) {
      append(line, String.format(Locale.ROOT, "rho %.2f", rho.asDouble()));
    }
    JsonNode reason = explain.path("reason");
    String text = reason.isObject() ? reason.path("code").asText("") : reason.asText("");
    if (!text.isEmpty() && !text.equals("null") && !text.equals("Running")) {
      append(line, "waits: " + text);
    }
    return line.toString();
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
    line.append(line.isEmpty() ? "" : "; ").append(part);
  }
}
