package isonomy.nm;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.yarn.api.ApplicationConstants;

/**
 * The processes of a container, from Linux's /proc: those in its first process's session, and those that left it
 * but name the container in their environment, which the NodeManager can read only for its own user's processes.
 */
final class Session {
  private static final Path PROC = Path.of("/proc");
  // Fields of /proc/PID/stat after the name, which may contain blanks and brackets.
  private static final int STATE = 0;
  private static final int GROUP = 2;
  private static final int LEADER = 3;

  private Session() {}

  /** The container's process groups that still have a process; empty without /proc. */
  static Set<String> groups(String leader, String container) {
    String named = "\0" + ApplicationConstants.Environment.CONTAINER_ID.key() + "=" + container + "\0";
    Set<String> groups = new TreeSet<>();
    try (DirectoryStream<Path> processes = Files.newDirectoryStream(PROC, "[0-9]*")) {
      for (Path process : processes) {
        String[] fields = fields(process);
        if (fields.length > LEADER && !"ZX".contains(fields[STATE])
            && (fields[LEADER].equals(leader) || ("\0" + text(process.resolve("environ")) + "\0").contains(named))) {
          groups.add(fields[GROUP]);
        }
      }
    } catch (IOException e) {
      return Set.of();
    }
    return groups;
  }

  private static String[] fields(Path process) {
    String stat = text(process.resolve("stat"));
    return stat.substring(stat.lastIndexOf(')') + 1).trim().split(" ");
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
