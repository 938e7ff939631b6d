package isonomy.yarn;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.EnumSet;
import org.apache.commons.io.IOUtils;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeys;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.curator.ZKCuratorManager;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.RMStateStore;
import org.apache.hadoop.yarn.server.resourcemanager.recovery.ZKRMStateStore;

/** Where the mode lies: beside the ResourceManager's own state, which both of a pair read, or in a local folder. */
interface ModeStore {
  String NAME = "isonomy-mode";
  /** The local folder, for a ResourceManager that keeps no state in ZooKeeper or a file system. */
  String FOLDER = "isonomy.scheduler.mode-dir";

  /** What was written last; null if nothing was. */
  byte[] read() throws IOException;

  void write(byte[] content) throws IOException;

  /** By the kind of the ResourceManager's own store. */
  static ModeStore beside(RMContext rm, Configuration conf) {
    RMStateStore state = rm.getStateStore();
    if (state instanceof ZKRMStateStore) {
      return new InZooKeeper(conf, rm.getResourceManager());
    }
    if (state instanceof FileSystemRMStateStore) {
      return new InFolder(conf, conf.get(YarnConfiguration.FS_RM_STATE_STORE_URI));
    }
    String folder = conf.getTrimmed(FOLDER, "");
    return folder.isEmpty() ? new Nowhere() : new InFolder(conf, new Path("file:///", folder).toString());
  }

  /** Nothing says where. */
  final class Nowhere implements ModeStore {
    @Override
    public byte[] read() {
      return null;
    }

    @Override
    public void write(byte[] content) throws IOException {
      throw new IOException("yarn-site.xml: " + FOLDER + ": must name a local folder, since this ResourceManager keeps no"
          + " state in ZooKeeper or a file system");
    }

    @Override
    public String toString() {
      return "no place";
    }
  }

  /** A file on HDFS, or another file system of Hadoop's, or a local disk; each write replaces it whole. */
  final class InFolder implements ModeStore {
    private final Configuration conf;
    private final Path file;

    InFolder(Configuration conf, String folder) {
      this.conf = conf;
      this.file = new Path(folder, NAME + ".json");
    }

    @Override
    public byte[] read() throws IOException {
      FileContext files = FileContext.getFileContext(conf);
      try {
        files.setVerifyChecksum(false, file);  // a local one's is replaced apart from it
        try (FSDataInputStream in = files.open(file)) {
          return IOUtils.toByteArray(in);
        }
      } catch (FileNotFoundException e) {
        return null;
      }
    }

    @Override
    public void write(byte[] content) throws IOException {
      FileContext files = FileContext.getFileContext(conf);
      Path whole = file.suffix(".new");
      EnumSet<CreateFlag> replacing = EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE);
      try (FSDataOutputStream out = files.create(whole, replacing, Options.CreateOpts.createParent())) {
        out.write(content);
        out.hsync();
      }
      files.rename(whole, file, Options.Rename.OVERWRITE);
    }

    @Override
    public String toString() {
      return file.toString();
    }
  }

  /** A node beside ZKRMStateStore's root, with the ResourceManager's own authentication and ACLs. */
  final class InZooKeeper implements ModeStore {
    private static final int TRIES = 5;

    /** What is done in one connection. */
    private interface Call<T> {
      T on(ZKCuratorManager zookeeper) throws Exception;
    }

    private final Configuration conf;
    private final ResourceManager rm;
    private final String node;

    InZooKeeper(Configuration conf, ResourceManager rm) {
      this.conf = new Configuration(conf);
      this.conf.setInt(CommonConfigurationKeys.ZK_NUM_RETRIES, TRIES);  // somebody waits for the answer
      this.rm = rm;
      this.node = ZKCuratorManager.getNodePath(conf.get(
          YarnConfiguration.ZK_RM_STATE_STORE_PARENT_PATH, YarnConfiguration.DEFAULT_ZK_RM_STATE_STORE_PARENT_PATH), NAME);
    }

    @Override
    public byte[] read() throws IOException {
      byte[] found = connected(zookeeper -> zookeeper.exists(node) ? zookeeper.getData(node) : null);
      return found == null || found.length == 0 ? null : found;  // a node is made first, and then filled
    }

    @Override
    public void write(byte[] content) throws IOException {
      connected(zookeeper -> {
        zookeeper.createRootDirRecursively(node, ZKCuratorManager.getZKAcls(conf));
        zookeeper.setData(node, content, -1);
        return null;
      });
    }

    private <T> T connected(Call<T> call) throws IOException {
      ZKCuratorManager zookeeper = rm.createAndStartZKManager(conf);
      try {
        return call.on(zookeeper);
      } catch (Exception e) {
        throw new IOException("ZooKeeper: " + e, e);
      } finally {
        zookeeper.close();
      }
    }

    @Override
    public String toString() {
      return "ZooKeeper's " + node;
    }
  }
}
