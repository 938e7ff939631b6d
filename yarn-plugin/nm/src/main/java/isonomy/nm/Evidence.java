package isonomy.nm;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The append-only record of which container had which GPUs when: a line of JSON for each start and each end. */
final class Evidence {
  private static final Logger LOG = LoggerFactory.getLogger(Evidence.class);

  private final FileChannel file;
  private final String node;

  Evidence(Path path, String node) throws IOException {
    if (path.getParent() != null) {
      Files.createDirectories(path.getParent());
    }
    this.file =
        FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    this.node = node;
  }

  void started(GpuUse use) {
    append(use, "start", "");
  }

  void ended(GpuUse use, int exitCode) {
    append(use, "end", ",\"exit\":" + exitCode);
  }

  /** A line that cannot be written is logged: a full disk must not stop containers. */
  private synchronized void append(GpuUse use, String event, String more) {
    String line = String.format(
        "{\"event\":\"%s\",\"container\":\"%s\",\"node\":\"%s\",\"gpu_ids\":[%s],\"lease\":\"%s\",\"time_ms\":%d%s}%n",
        event, use.container(), node, use.visibleDevices(), use.lease(), System.currentTimeMillis(), more);
    try {
      file.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8)));
      file.force(false);
    } catch (IOException e) {
      LOG.error("evidence lost: {}", line.strip(), e);
    }
  }
}
