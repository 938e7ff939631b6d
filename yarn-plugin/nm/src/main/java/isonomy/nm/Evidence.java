package isonomy.nm;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The append-only record of which container had which GPUs, and when: one JSON line per start and end. The file is
 * opened for each line, so renaming it is enough to rotate it.
 */
final class Evidence {
  private static final JsonFactory JSON = new JsonFactory();
  private static final Logger LOG = LoggerFactory.getLogger(Evidence.class);

  private final Path path;
  private final Supplier<String> node;

  /** A file that cannot be written is only logged, now and for each line: the NodeManager starts without it. */
  Evidence(Path path, Supplier<String> node) {
    this.path = path;
    this.node = node;
    try {
      if (path.getParent() != null) {
        Files.createDirectories(path.getParent());
      }
      append("");
    } catch (IOException e) {
      LOG.error("{} cannot be written: no audit will know who had which GPUs; set {}", path, GpuLaunches.EVIDENCE_FILE, e);
    }
  }

  void started(GpuUse use) {
    record("start", use, null);
  }

  void ended(GpuUse use, int exitCode) {
    record("end", use, exitCode);
  }

  /** A failure is only logged, because a full disk must not stop containers. */
  private void record(String event, GpuUse use, Integer exitCode) {
    StringWriter line = new StringWriter();
    try (JsonGenerator json = JSON.createGenerator(line)) {
      json.writeStartObject();
      json.writeStringField("event", event);
      json.writeStringField("container", use.container);
      json.writeStringField("node", node.get());
      json.writeFieldName("gpu_ids");
      json.writeArray(use.gpuIds.stream().mapToInt(Integer::intValue).toArray(), 0, use.gpuIds.size());
      json.writeStringField("lease", use.lease);
      json.writeNumberField("time_ms", System.currentTimeMillis());
      if (exitCode != null) {
        json.writeNumberField("exit", exitCode);
      }
      json.writeEndObject();
      json.flush();
      append(line + "\n");
    } catch (IOException e) {
      LOG.error("evidence lost: {} of {} with GPUs {}", event, use.container, use.visibleDevices(), e);
    }
  }

  private synchronized void append(String text) throws IOException {
    Files.writeString(path, text, StandardOpenOption.CREATE, StandardOpenOption.APPEND, StandardOpenOption.DSYNC);
  }
}
