package isonomy.submarine;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileVisitOption;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileUtil;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.api.records.LocalResourceType;
import org.apache.hadoop.yarn.api.records.LocalResourceVisibility;
import org.apache.hadoop.yarn.api.records.URL;
import org.apache.submarine.client.cli.param.Localization;
import org.apache.submarine.commons.runtime.fs.RemoteDirectoryManager;

/** The application's folder in the staging area, with its containers' files, readable only by its user. */
final class Staging {
  private static final FsPermission PRIVATE = new FsPermission((short) 0700);

  private final Configuration conf;
  private final Path folder;
  private final FileSystem fs;

  Staging(Configuration conf, Path folder) throws IOException {
    this.conf = conf;
    this.folder = folder;
    this.fs = folder.getFileSystem(conf);
  }

  /** Creates the folder and makes the job's staging area private, as it has checkpoints and models by default. */
  void create() throws IOException {
    fs.mkdirs(folder, PRIVATE);
    fs.setPermission(folder, PRIVATE);
    Path area = folder.getParent();
    if (fs.getFileStatus(area).getOwner().equals(UserGroupInformation.getCurrentUser().getShortUserName())) {
      fs.setPermission(area, PRIVATE);
    }
  }

  void delete() {
    try {
      fs.delete(folder, true);
    } catch (IOException e) {
      System.err.println("submarine: " + folder + " could not be removed: " + OneLineErrors.oneLine(e));
    }
  }

  /** Deletes the folders of a refused job that are empty; the stock command line makes them before it submits. */
  static void deleteEmpty(RemoteDirectoryManager folders, String jobName) {
    try {
      Path staging = folders.getJobStagingArea(jobName, false);
      deleteEmpty(folders.getDefaultFileSystem(), staging.getParent());
    } catch (IOException e) {
      System.err.println("submarine: empty folders of " + jobName + " may be left: " + OneLineErrors.oneLine(e));
    }
  }

  private static boolean deleteEmpty(FileSystem fs, Path folder) throws IOException {
    if (!fs.exists(folder)) {
      return true;
    }
    boolean empty = true;
    for (FileStatus below : fs.listStatus(folder)) {
      empty &= below.isDirectory() && deleteEmpty(fs, below.getPath());
    }
    return empty && fs.delete(folder, false);
  }

  Path write(String name, String text) throws IOException {
    Path path = new Path(folder, name);
    try (OutputStream out = fs.create(path, true)) {
      out.write(text.getBytes(StandardCharsets.UTF_8));
    }
    return path;
  }

  /** Copies a local file into the folder; returns a path on the cluster's file system unchanged. */
  Path place(Path source, String name) throws IOException {
    if (!"file".equals(source.toUri().getScheme())) {
      return source;
    }
    Path target = new Path(folder, name);
    fs.copyFromLocalFile(false, true, source, target);
    return target;
  }

  /** The entry of a container's file list for a file of the cluster. */
  LocalResource resource(Path path) throws IOException {
    FileStatus status = path.getFileSystem(conf).getFileStatus(path);
    return LocalResource.newInstance(URL.fromPath(status.getPath()), LocalResourceType.FILE,
        LocalResourceVisibility.APPLICATION, status.getLen(), status.getModificationTime());
  }

  /** Refuses localizations that are not possible, before anything is written. */
  static void check(List<Localization> localizations, Configuration conf) throws IOException {
    Map<String, Path> sources = new HashMap<>();
    for (Localization localization : localizations) {
      String uri = localization.getRemoteUri();
      Path path = new Path(uri);
      UserError.when(localization.getLocalPath().startsWith("/"),
          "-localization " + uri + ":" + localization.getLocalPath()
          + ": an absolute target needs a Docker mount, which is not supported; write ./name");
      UserError.when(isLocal(uri) && !new File(path.toUri().getPath()).exists(),
          "-localization " + uri + ": no such file or folder here");
      UserError.when(!isLocal(uri) && !isWeb(uri) && !path.getFileSystem(conf).exists(path),
          "-localization " + uri + ": does not exist");
      Path other = sources.put(nameOf(localization), path);
      UserError.when(other != null && !other.equals(path),
          "-localization " + uri + ": " + other + " has this name, too; write " + uri + ":./NAME for another");
    }
  }

  /** The workers' files as the app spec lists them; local ones are uploaded, a local folder as an archive. */
  List<Map<String, Object>> localize(List<Localization> localizations) throws IOException {
    List<Map<String, Object>> resources = new ArrayList<>();
    for (Localization localization : localizations) {
      String uri = localization.getRemoteUri();
      Path source = new Path(uri);
      String name = nameOf(localization);
      Path place;
      boolean archive = false;
      if (isLocal(uri)) {
        File file = new File(source.toUri().getPath());
        archive = file.isDirectory();
        place = archive ? zip(file, name) : place(new Path(file.toURI()), "files/" + name);
      } else if (isWeb(uri)) {
        place = new Path(folder, "files/" + name);
        FileUtil.copy(source.getFileSystem(conf), source, fs, place, false, conf);
      } else {
        place = source.getFileSystem(conf).makeQualified(source);
      }
      resources.add(Map.of("name", name, "uri", place.toString(), "archive", archive));
    }
    return resources;
  }

  private static String nameOf(Localization localization) {
    String target = localization.getLocalPath().replaceFirst("^\\./", "");
    return target.isEmpty() || target.equals(".") ? new Path(localization.getRemoteUri()).getName() : target;
  }

  /** Like the stock runtimes: without a scheme a path is a local one. */
  private static boolean isLocal(String uri) {
    String scheme = new Path(uri).toUri().getScheme();
    return scheme == null || scheme.equals("file");
  }

  private static boolean isWeb(String uri) {
    return uri.startsWith("http://") || uri.startsWith("https://");
  }

  private Path zip(File root, String name) throws IOException {
    Path target = new Path(folder, "files/" + name + ".zip");
    java.nio.file.Path base = root.toPath();
    try (ZipOutputStream out = new ZipOutputStream(fs.create(target, true));
        Stream<java.nio.file.Path> paths = Files.walk(base, FileVisitOption.FOLLOW_LINKS)) {
      for (java.nio.file.Path path : paths.filter(Files::isRegularFile).sorted().toList()) {
        out.putNextEntry(new ZipEntry(base.relativize(path).toString()));
        Files.copy(path, out);
        out.closeEntry();
      }
    } catch (UncheckedIOException e) {
      throw new UserError("-localization " + root + ": cannot be read: " + e.getCause(), e);
    }
    return target;
  }
}
