package isonomy.nm;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.TreeSet;

/** The processes of a container: those of the session that its first process leads, by Linux's /proc. */
final class Session {
  private static final Path PROC = Path.of("/proc");
  // Fields of /proc/PID/stat behind the name, which may hold blanks and brackets.
  private static final int STATE = 0;
  private static final int GROUP = 2;
  private static final int LEADER = 3;

  private Session() {}

  /** The process groups of the session that still have a process; empty where there is no /proc. */
  static Set<String> groups(String leader) {
    Set<String> groups = new TreeSet<>();
    try (DirectoryStream<Path> processes = Files.newDirectoryStream(PROC, "[0-9]*")) {
      for (Path process : processes) {
        String[] fields = fields(process);
        if (fields.length > LEADER && fields[LEADER].equals(leader) && !"ZX".contains(fields[STATE])) {
          groups.add(fields[GROUP]);
        }
      }
    } catch (IOException e) {
      return Set.of();
    }
    return groups;
  }

  private static String[] fields(Path process) {
    try {
      String stat = new String(Files.readAllBytes(process.resolve("stat")), StandardCharsets.ISO_8859_1);
      return stat.substring(stat.lastIndexOf(')') + 1).trim().split(" ");
    } catch (IOException e) {
      return new String[0]; // it has ended
    }
  }
}
