package isonomy.am;

import isonomy.wire.v1.AmLaunch;
import isonomy.wire.v1.AmResource;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.api.records.LocalResourceType;
import org.apache.hadoop.yarn.api.records.LocalResourceVisibility;
import org.apache.hadoop.yarn.api.records.URL;
import org.apache.hadoop.yarn.security.AMRMTokenIdentifier;

/** Turns a launch command of the Agent into a container launch context. */
final class WorkerLaunch {
  private final Configuration conf;
  private final Credentials own;
  /** As they were when their file system last answered: a machine that has copied them needs it for nothing else. */
  private final Map<AmResource, LocalResource> known = new ConcurrentHashMap<>();

  WorkerLaunch(Configuration conf, Credentials own) {
    this.conf = conf;
    this.own = own;
  }

  /** Asks the file systems for the files as they are now: a NodeManager refuses one that was changed since. */
  ContainerLaunchContext context(AmLaunch launch) throws IOException {
    Map<String, LocalResource> resources = new HashMap<>();
    for (AmResource resource : launch.getResourcesList()) {
      resources.put(resource.getName(), localResource(resource));
    }
    String command = inDoubleQuotes(launch.getCommand()) + " 1>" + ApplicationConstants.LOG_DIR_EXPANSION_VAR
        + "/stdout 2>" + ApplicationConstants.LOG_DIR_EXPANSION_VAR + "/stderr";
    Map<String, String> env = new HashMap<>();
    launch.getEnvMap().forEach((name, value) -> env.put(name, escaped("[\\\\\"`]", value)));
    return ContainerLaunchContext.newInstance(resources, env, List.of(command), null, workerCredentials(), null);
  }

  /** A worker's credentials: for HDFS and the control plane, but without the master's token for YARN. */
  private ByteBuffer workerCredentials() throws IOException {
    DataOutputBuffer buffer = new DataOutputBuffer();
    withoutMasterToken(own).writeTokenStorageToStream(buffer);
    return ByteBuffer.wrap(buffer.getData(), 0, buffer.getLength());
  }

  static Credentials withoutMasterToken(Credentials credentials) {
    Credentials kept = new Credentials();
    credentials.getAllSecretKeys().forEach(alias -> kept.addSecretKey(alias, credentials.getSecretKey(alias)));
    credentials.getTokenMap().forEach((alias, token) -> {
      if (!token.getKind().equals(AMRMTokenIdentifier.KIND_NAME)) {
        kept.addToken(alias, token);
      }
    });
    return kept;
  }

  private LocalResource localResource(AmResource resource) throws IOException {
    Path path = new Path(resource.getUri());
    LocalResourceType type = resource.getArchive() ? LocalResourceType.ARCHIVE : LocalResourceType.FILE;
    try {
      FileStatus status = path.getFileSystem(conf).getFileStatus(path);
      LocalResource found = LocalResource.newInstance(URL.fromPath(status.getPath()), type,
          LocalResourceVisibility.APPLICATION, status.getLen(), status.getModificationTime());
      known.put(resource, found);
      return found;
    } catch (IOException e) {
      LocalResource last = known.get(resource);
      if (last == null || e instanceof FileNotFoundException) {
        throw e;
      }
      return last;
    }
  }

  /** Escapes a command, because the NodeManager runs {@code bash -c "command"}. */
  static String inDoubleQuotes(String command) {
    return escaped("[\\\\\"$`]", command);
  }

  /** Also parts equal braces, by what bash removes again, as the NodeManager replaces two of them. */
  private static String escaped(String special, String text) {
    return text.replaceAll(special, "\\\\$0").replaceAll("\\{(?=\\{)|\\}(?=\\})", "$0\\\\\n");
  }
}
