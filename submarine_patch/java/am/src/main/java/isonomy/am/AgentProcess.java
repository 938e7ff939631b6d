package isonomy.am;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.hadoop.thirdparty.com.google.common.collect.EvictingQueue;
import org.apache.hadoop.thirdparty.com.google.common.collect.Queues;
import org.apache.hadoop.thirdparty.com.google.common.util.concurrent.Uninterruptibles;

/** The Agent, a child process that gets this shell's port and token only over its standard input. */
final class AgentProcess {
  private static final int LINES_KEPT = 15;
  private static final int LINE_CHARS = 200;
  private static final long TERM_WAIT_S = 5;
  private static final long PUMP_WAIT_S = 2;

  private final Process process;
  private final Thread stderrPump;
  private final Queue<String> lastLines = Queues.synchronizedQueue(EvictingQueue.create(LINES_KEPT));

  private AgentProcess(Process process) {
    this.process = process;
    this.stderrPump = new Thread(this::pumpStderr, "agent-stderr");
    stderrPump.setDaemon(true);
    stderrPump.start();
  }

  /**
   * Starts the child.
   *
   * @param greeting one line of JSON, written to its standard input before end of file
   */
  static AgentProcess start(List<String> command, String greeting) throws IOException {
    ProcessBuilder builder = new ProcessBuilder(command).redirectOutput(ProcessBuilder.Redirect.INHERIT);
    builder.environment().put("PYTHONUNBUFFERED", "1");
    AgentProcess agent = new AgentProcess(builder.start());
    try (OutputStream stdin = agent.process.getOutputStream()) {
      stdin.write((greeting + "\n").getBytes(StandardCharsets.UTF_8));
    } catch (IOException e) {
      // The child has already ended: its exit code says why.
    }
    return agent;
  }

  /** Passes the attempt's failure to the consumer when the child ends. */
  void onExit(Consumer<Outcome> consumer) {
    process.onExit().thenAccept(ended -> {
      Uninterruptibles.joinUninterruptibly(stderrPump, PUMP_WAIT_S, TimeUnit.SECONDS);
      consumer.accept(failure(ended.exitValue()));
    });
  }

  /** Asks the child to end, then kills it. */
  void stop() {
    process.destroy();
    try {
      if (!process.waitFor(TERM_WAIT_S, TimeUnit.SECONDS)) {
        process.destroyForcibly();
      }
    } catch (InterruptedException e) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
    }
  }

  /** Waits for the child to end by itself. */
  void awaitExit(long seconds) throws InterruptedException {
    process.waitFor(seconds, TimeUnit.SECONDS);
  }

  private Outcome failure(int exitCode) {
    boolean signalled = exitCode > 128;
    String how = signalled ? "was killed by signal " + (exitCode - 128) : "ended with exit code " + exitCode;
    String message = "the Agent " + how + " before the app was finished; its last lines:\n"
        + String.join("\n", lastLines.toArray(new String[0]));
    return Outcome.attemptFailed(message, exitCode == 0 || signalled ? Outcome.SOFTWARE : exitCode);
  }

  private void pumpStderr() {
    try (BufferedReader reader =
        new BufferedReader(new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8))) {
      for (String line = reader.readLine(); line != null; line = reader.readLine()) {
        System.err.println(line);
        keep(line);
      }
    } catch (IOException e) {
      keep("(standard error of the Agent was lost: " + e.getMessage() + ")");
    }
  }

  private void keep(String line) {
    lastLines.add(line.length() > LINE_CHARS ? line.substring(0, LINE_CHARS) : line);
  }
}
