package isonomy.nm;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.ApplicationConstants;

/**
 * The processes of a container, from Linux's /proc: those in its first process's session, and those that left it but
 * are in the container's cgroup, or name it in their environment, which only a process's own user can read.
 */
final class Session {
  static final Path PROC = Path.of("/proc");
  // Fields of /proc/PID/stat after the name, which may contain blanks and brackets.
  private static final int STATE = 0;
  private static final int GROUP = 2;
  private static final int LEADER = 3;
  /** CPU time of the process and of its children that have ended, by user and system. */
  private static final int CPU_FIRST = 11;
  private static final int CPU_LAST = 14;
  private static final long MS_PER_TICK = 10;

  private Session() {}

  /** The container's process groups that still have a process; empty without /proc. */
  static Set<String> groups(String leader, String container) {
    return processes(leader, container).stream().map(fields -> fields[GROUP]).collect(Collectors.toSet());
  }

  /** The CPU time that the container's processes have used, ms; -1 if it has none. */
  static long cpuMs(String leader, String container) {
    List<String[]> processes = processes(leader, container);
    long ticks = 0;
    for (String[] fields : processes) {
      for (int i = CPU_FIRST; i <= CPU_LAST && i < fields.length; i++) {
        ticks += Long.parseLong(fields[i]);
      }
    }
    return processes.isEmpty() ? -1 : ticks * MS_PER_TICK;
  }

  /** The fields of the container's processes; empty without /proc. */
  private static List<String[]> processes(String leader, String container) {
    List<String[]> found = new ArrayList<>();
    try (DirectoryStream<Path> processes = Files.newDirectoryStream(PROC, "[0-9]*")) {
      for (Path process : processes) {
        String[] fields = fields(process);
        if (fields.length > LEADER && !"ZX".contains(fields[STATE])
            && (fields[LEADER].equals(leader) || isOf(process, container))) {
          found.add(fields);
        }
      }
    } catch (IOException e) {
      return List.of();
    }
    return found;
  }

  /** Whether the process, a folder of /proc, is in the container's cgroup or names it in its environment. */
  static boolean isOf(Path process, String container) {
    String named = "\0" + ApplicationConstants.Environment.CONTAINER_ID.key() + "=" + container + "\0";
    return text(process.resolve("cgroup")).lines().anyMatch(line -> (line + "/").contains("/" + container + "/"))
        || ("\0" + text(process.resolve("environ")) + "\0").contains(named);
  }

  private static String[] fields(Path process) {
    String stat = text(process.resolve("stat"));
    return stat.substring(stat.lastIndexOf(')') + 1).trim().split(" ");
  }

  /** Whether this user sees the processes of others, which hidepid hides. */
  static boolean seesOthers(Path proc) {
    return !text(proc.resolve("1/stat")).isEmpty();
  }

  /** The file's text; empty if the process has ended or belongs to another user. */
  private static String text(Path file) {
    try {
      return new String(Files.readAllBytes(file), StandardCharsets.ISO_8859_1);
    } catch (IOException e) {
      return "";
    }
  }
}
