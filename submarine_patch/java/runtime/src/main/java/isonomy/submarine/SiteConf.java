package isonomy.submarine;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DFSUtilClient;
import org.apache.hadoop.hdfs.HdfsConfiguration;

/**
 * Isonomy's settings in submarine-site.xml, and the Hadoop configuration.
 *
 * <p>Keys: {@code isonomy.am.jar} (local path or URI of isonomy-am.jar), {@code isonomy.python} (Python on the
 * NodeManagers), {@code isonomy.webhdfs.address} (by default from dfs.namenode.http-address),
 * {@code isonomy.webhdfs.ca} (local PEM file with which containers verify an https WebHDFS).
 */
final class SiteConf {
  private static final String AM_JAR = "isonomy.am.jar";
  private static final String PYTHON = "isonomy.python";
  private static final String WEBHDFS = "isonomy.webhdfs.address";
  private static final String WEBHDFS_CA = "isonomy.webhdfs.ca";

  private final Configuration site;
  private final Configuration hadoop;

  SiteConf(Configuration site, Configuration hadoop) {
    this.site = site;
    this.hadoop = hadoop;
  }

  /** The Hadoop configuration with the user's other {@code --conf} pairs on top. */
  static SiteConf load(Configuration hadoop, Map<String, String> overrides) {
    Configuration site = new Configuration(false);
    site.addResource("submarine-site.xml");
    Configuration merged = new HdfsConfiguration(hadoop);
    overrides.forEach(merged::set);
    return new SiteConf(site, merged);
  }

  Configuration hadoop() {
    return hadoop;
  }

  String python(GroupOptions group) {
    return group.python() != null ? group.python() : site.getTrimmed(PYTHON, "python3");
  }

  /** Where isonomy-am.jar is: the file exists if it is local. */
  Path amJar() throws UserError {
    String place = site.getTrimmed(AM_JAR, System.getProperty(AM_JAR));
    UserError.when(place == null || place.isEmpty(),
        "submarine-site.xml: isonomy.am.jar is absent: the path of isonomy-am.jar");
    Path path = new Path(place);
    String scheme = path.toUri().getScheme();
    if (scheme != null && !scheme.equals("file")) {
      return path;
    }
    File file = new File(path.toUri().getPath());
    UserError.when(!file.isFile(), "submarine-site.xml: isonomy.am.jar: no file " + file);
    return new Path(file.toURI());
  }

  /** The certificates with which containers verify an https WebHDFS; empty: those that each machine trusts. */
  String webhdfsCa() throws UserError {
    String file = site.getTrimmed(WEBHDFS_CA, "");
    if (file.isEmpty()) {
      return "";
    }
    try {
      String pem = Files.readString(java.nio.file.Path.of(file));
      if (pem.contains("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE KEY-----")) {
        return pem;
      }
    } catch (IOException e) {
      throw new UserError("submarine-site.xml: isonomy.webhdfs.ca: " + file + " cannot be read: " + e.getMessage());
    }
    throw new UserError("submarine-site.xml: isonomy.webhdfs.ca: " + file + " must hold certificates alone, as PEM");
  }

  /** WebHDFS of the default file system; several NameNodes (high availability) are separated by ';'. */
  String webhdfs() throws UserError {
    String given = site.getTrimmed(WEBHDFS);
    if (given != null && !given.isEmpty()) {
      return given.contains("://") ? given : "http://" + given;
    }
    URI fs = FileSystem.getDefaultUri(hadoop);
    UserError.when(!"hdfs".equals(fs.getScheme()),
        "core-site.xml: fs.defaultFS is " + fs
        + "; Isonomy keeps checkpoints on HDFS: set it to hdfs://..., or isonomy.webhdfs.address in"
        + " submarine-site.xml");
    boolean https = "HTTPS_ONLY".equals(hadoop.get("dfs.http.policy"));
    String key = https ? "dfs.namenode.https-address" : "dfs.namenode.http-address";
    String name = fs.getHost();
    boolean several = hadoop.getTrimmedStringCollection("dfs.nameservices").contains(name);
    String otherwise = "0.0.0.0:" + (https ? 9871 : 9870);
    return DFSUtilClient.getAddressesForNameserviceId(hadoop, several ? name : null, otherwise, key).values().stream()
        .map(node -> (https ? "https://" : "http://")
            + (node.getHostString().equals("0.0.0.0") ? name : node.getHostString()) + ":" + node.getPort())
        .collect(Collectors.joining(";"));
  }
}
