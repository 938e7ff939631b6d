package isonomy.submarine;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.submarine.commons.runtime.ClientContext;
import org.apache.submarine.commons.runtime.fs.RemoteDirectoryManager;
import org.apache.submarine.commons.runtime.fs.SubmarineStorage;

/** The storage for {@code job show}: a JSON file in the job's staging area, and one for each version of a model. */
final class JsonStorage extends SubmarineStorage {
  private static final String JOB_FILE = "job.json";
  private static final String DEFAULT_VERSION = "default";
  private static final ObjectMapper JSON = new ObjectMapper();

  private final ClientContext context;

  JsonStorage(ClientContext context) {
    this.context = context;
  }

  @Override
  public void addNewJob(String jobName, Map<String, String> jobInfo) throws IOException {
    write(new Path(directories().getJobStagingArea(jobName, true), JOB_FILE), jobInfo);
  }

  @Override
  public Map<String, String> getJobInfoByName(String jobName) throws IOException {
    Path jobs = directories().getUserRootFolder();
    Path file = new Path(new Path(new Path(jobs, jobName), "staging"), JOB_FILE);
    try {
      return read(file);
    } catch (FileNotFoundException e) {
      throw new UserError("-name " + jobName + ": no such job in " + jobs, e);
    }
  }

  @Override
  public void addNewModel(String modelName, String version, Map<String, String> modelInfo) throws IOException {
    write(modelFile(modelName, version, true), modelInfo);
  }

  @Override
  public Map<String, String> getModelInfoByName(String modelName, String version) throws IOException {
    return read(modelFile(modelName, version, false));
  }

  private Path modelFile(String modelName, String version, boolean create) throws IOException {
    String name = version == null ? DEFAULT_VERSION : version;
    return new Path(directories().getModelDir(modelName, create), name + ".json");
  }

  private RemoteDirectoryManager directories() {
    return context.getRemoteDirectoryManager();
  }

  /** Writes a temporary file and renames it, so that a reader never sees half a file. */
  private void write(Path file, Map<String, String> content) throws IOException {
    FileSystem fs = file.getFileSystem(context.getYarnConfig());
    Path part = file.suffix(".part");
    try (OutputStream out = fs.create(part, true)) {
      out.write(JSON.writeValueAsString(new TreeMap<>(content)).getBytes(StandardCharsets.UTF_8));
    }
    fs.delete(file, false);
    if (!fs.rename(part, file)) {
      throw new IOException(file + ": cannot be written");
    }
  }

  private Map<String, String> read(Path file) throws IOException {
    FileSystem fs = file.getFileSystem(context.getYarnConfig());
    try (InputStream in = fs.open(file)) {
      return JSON.readValue(in, new TypeReference<Map<String, String>>() { });
    }
  }
}
