package isonomy.submarine;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
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
    if (place == null || place.isEmpty()) {
      throw new UserError("submarine-site.xml: isonomy.am.jar is absent: the path of isonomy-am.jar");
    }
    Path path = new Path(place);
    String scheme = path.toUri().getScheme();
    if (scheme != null && !scheme.equals("file")) {
      return path;
    }
    File file = new File(path.toUri().getPath());
    if (!file.isFile()) {
      throw new UserError("submarine-site.xml: isonomy.am.jar: no file " + file);
    }
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
    if (!"hdfs".equals(fs.getScheme())) {
      throw new UserError("core-site.xml: fs.defaultFS is " + fs
          + "; Isonomy keeps checkpoints on HDFS: set it to hdfs://..., or isonomy.webhdfs.address in"
          + " submarine-site.xml");
    }
    boolean https = "HTTPS_ONLY".equals(hadoop.get("dfs.http.policy"));
    String key = https ? "dfs.namenode.https-address" : "dfs.namenode.http-address";
    List<String> urls = new ArrayList<>();
    for (String suffix : nameNodes(fs.getHost())) {
      String address = hadoop.getTrimmed(key + suffix, "0.0.0.0:" + (https ? 9871 : 9870));
      String host = address.substring(0, address.lastIndexOf(':'));
      String port = address.substring(address.lastIndexOf(':'));
      urls.add((https ? "https://" : "http://") + (host.equals("0.0.0.0") ? fs.getHost() : host) + port);
    }
    return String.join(";", urls);
  }

  /** Key suffixes of the NameNodes behind a name: one empty suffix, or one for each of a nameservice. */
  private List<String> nameNodes(String name) {
    if (!hadoop.getTrimmedStringCollection("dfs.nameservices").contains(name)) {
      return List.of("");
    }
    List<String> suffixes = new ArrayList<>();
    for (String node : hadoop.getTrimmedStringCollection("dfs.ha.namenodes." + name)) {
      suffixes.add("." + name + "." + node);
    }
    return suffixes.isEmpty() ? List.of("." + name) : suffixes;
  }
}
