package isonomy.submarine;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.submarine.commons.runtime.ClientContext;
import org.apache.submarine.commons.runtime.fs.FSBasedSubmarineStorageImpl;

/** The storage for {@code job show}: a JSON file in the job's staging area. No command stores models. */
final class JsonStorage extends FSBasedSubmarineStorageImpl {
  private static final String JOB_FILE = "job.json";
  private static final ObjectMapper JSON = new ObjectMapper();

  private final ClientContext context;

  JsonStorage(ClientContext context) {
    super(context);
    this.context = context;
  }

  /** Writes a temporary file and renames it, so that a reader never sees half a file. */
  @Override
  public void addNewJob(String jobName, Map<String, String> jobInfo) throws IOException {
    Path file = new Path(context.getRemoteDirectoryManager().getJobStagingArea(jobName, true), JOB_FILE);
    FileSystem fs = file.getFileSystem(context.getYarnConfig());
    Path part = file.suffix(".part");
    try (OutputStream out = fs.create(part, true)) {
      out.write(JSON.writeValueAsBytes(new TreeMap<>(jobInfo)));
    }
    fs.delete(file, false);
    if (!fs.rename(part, file)) {
      throw new IOException(file + ": cannot be written");
    }
  }

  @Override
  public Map<String, String> getJobInfoByName(String jobName) throws IOException {
    Path jobs = context.getRemoteDirectoryManager().getUserRootFolder();
    Path file = new Path(new Path(new Path(jobs, jobName), "staging"), JOB_FILE);
    try (InputStream in = file.getFileSystem(context.getYarnConfig()).open(file)) {
      return JSON.readValue(in, new TypeReference<Map<String, String>>() { });
    } catch (FileNotFoundException e) {
      throw new UserError("-name " + jobName + ": no such job in " + jobs, e);
    }
  }
}
