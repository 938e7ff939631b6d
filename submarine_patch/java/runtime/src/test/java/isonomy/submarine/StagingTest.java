package isonomy.submarine;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class StagingTest {
  @Test
  void nobodyElseReadsTheAppsFolderNorTheJobsAreaWithItsModels(@TempDir Path home) throws IOException {
    Path area = Files.createDirectories(home.resolve("jobs/digits/staging"));
    Files.setPosixFilePermissions(area, PosixFilePermissions.fromString("rwxr-xr-x"));
    new Staging(new Configuration(), new org.apache.hadoop.fs.Path(area.resolve("application_1_1").toUri())).create();
    assertEquals("rwx------", permissions(area));
    assertEquals("rwx------", permissions(area.resolve("application_1_1")));
  }

  private static String permissions(Path path) throws IOException {
    return PosixFilePermissions.toString(Files.getPosixFilePermissions(path));
  }
}
