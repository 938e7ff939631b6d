package isonomy.submarine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.ZipFile;
import org.apache.commons.cli.ParseException;
import org.apache.hadoop.conf.Configuration;
import org.apache.submarine.client.cli.param.Localization;
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

  @Test
  void aFolderGoesWithWhatItsLinksLeadToButNotInCircles(@TempDir Path home) throws IOException, ParseException {
    Files.createFile(Files.createDirectories(home.resolve("lib/deep")).resolve("util.py"));
    Path code = Files.createDirectory(home.resolve("code"));
    Files.createSymbolicLink(code.resolve("lib"), home.resolve("lib"));
    Staging staging = new Staging(new Configuration(), new org.apache.hadoop.fs.Path(home.resolve("app").toUri()));
    String archive = (String) staging.localize(localizations(code + ":./code")).get(0).get("uri");
    try (ZipFile zip = new ZipFile(URI.create(archive).getPath())) {
      assertEquals(List.of("lib/deep/util.py"), zip.stream().map(Object::toString).toList());
    }
    Files.createSymbolicLink(home.resolve("lib/up"), code);
    String error = assertThrows(UserError.class, () -> staging.localize(localizations(code + ":./code"))).getMessage();
    assertTrue(error.startsWith("--localization " + code + ": ") && error.contains("lib/up"), error);
  }

  @Test
  void twoFilesOfOneNameAreRefusedButNotOneTwice(@TempDir Path home) throws IOException, ParseException {
    Path one = Files.createFile(Files.createDirectory(home.resolve("a")).resolve("util.py"));
    Path two = Files.createFile(Files.createDirectory(home.resolve("b")).resolve("util.py"));
    Configuration conf = new Configuration();
    Staging.check(localizations(one + ":.", one + ":./util.py", two + ":./other.py"), conf);
    List<Localization> both = localizations(one + ":.", two + ":.");
    assertEquals("--localization " + two + ": " + one + " has this name, too; write " + two + ":./NAME for another",
        assertThrows(UserError.class, () -> Staging.check(both, conf)).getMessage());
  }

  private static List<Localization> localizations(String... pairs) throws ParseException {
    List<Localization> parsed = new ArrayList<>();
    for (String pair : pairs) {
      Localization localization = new Localization();
      localization.parse(pair);
      parsed.add(localization);
    }
    return parsed;
  }

  private static String permissions(Path path) throws IOException {
    return PosixFilePermissions.toString(Files.getPosixFilePermissions(path));
  }
}
