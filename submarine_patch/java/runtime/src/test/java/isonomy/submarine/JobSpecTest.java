package isonomy.submarine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.ConnectException;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.net.NetUtils;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.submarine.client.cli.param.runjob.RunJobParameters;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class JobSpecTest {
  private static final GroupOptions PLAIN = plain();

  @BeforeAll
  static void gpuType() {
    IsonomyRuntimeFactory.registerGpuType();
  }

  @Test
  void stockOptionsKeepTheirMeaning() throws Exception {
    JobSpec job = JobSpec.of(StockCli.parse("-worker_resources", "memory=2G,vcores=2,gpu=1", "-num_workers", "2",
        "-worker_launch_cmd", "python train.py --data %input_path% --out %checkpoint_path%", "-queue", "research",
        "-env", "A=b=c", "-env", "FLAG", "-localization", "./train.py:."), PLAIN);
    assertEquals("python train.py --data /data --out hdfs://nn:8020/ckpt", job.worker().launchCmd());
    assertEquals(2048, job.worker().memoryMb());
    assertEquals(2, job.worker().vcores());
    assertEquals(2, job.gpusPerJob());
    assertEquals("b=c", job.worker().env().get("A"));
    assertEquals("", job.worker().env().get("FLAG"));
    assertEquals("./train.py", job.localizations().get(0).getRemoteUri());
  }

  @Test
  void aYamlSpecStandsForTheOptions() throws Exception {
    java.nio.file.Path file = java.nio.file.Files.createTempFile("spec", ".yaml");
    java.nio.file.Files.writeString(file, """
        spec: {name: digits, job_type: TENSORFLOW}
        configs: {input_path: /data, checkpoint_path: "hdfs://nn:8020/ckpt"}
        scheduling: {queue: prod}
        roles:
          worker: {replicas: 1, resources: "memory=1G,vcores=1,gpu=2", launch_cmd: python train.py}
        """);
    JobSpec job = JobSpec.of(StockCli.parseOnly("-f", file.toString(), "-conf", "isonomy.gpus_per_job=4"),
        GroupOptions.parse(List.of("isonomy.gpus_per_job=4")));
    assertEquals("prod", job.queue());
    assertEquals(4, job.gpusPerJob());
    assertEquals(2, job.worker().gpus());
  }

  @Test
  void whatIsNotSupportedIsRefused() {
    refused("--ps_resources gpu=1", "-num_workers", "2", "-num_ps", "1", "-ps_resources", "memory=1G,vcores=1,gpu=1");
    refused("--docker_image", "-ps_docker_image", "image:1");
    refused("--distribute_keytab", "-distribute_keytab");
    refused("--docker_image", "-docker_image", "image:1");
    refused("--docker_image", "-worker_docker_image", "image:1");
    refused("--env CUDA_VISIBLE_DEVICES", "-env", "CUDA_VISIBLE_DEVICES=0");
    refused("--env ISONOMY_ARBITER", "-env", "ISONOMY_ARBITER=x:1");
  }

  private static void refused(String start, String... options) {
    UserError error = assertThrows(UserError.class, () -> {
      String[] all = new String[options.length + 4];
      System.arraycopy(new String[] {"-worker_resources", "memory=1G,vcores=1", "-worker_launch_cmd", "true"}, 0, all,
          0, 4);
      System.arraycopy(options, 0, all, 4, options.length);
      JobSpec.of(StockCli.parse(all), PLAIN);
    });
    assertTrue(error.getMessage().startsWith(start), error.getMessage());
  }

  @Test
  void theClusterMustBeAbleToHoldTheJob() throws Exception {
    ClusterCheck cluster = new ClusterCheck(List.of("root.prod", "root.research", "root.a.dev", "root.b.dev"),
        List.of("root", "root.a", "root.b"), List.of(node(8192, 8, 4), node(8192, 8, 2)));
    assertEquals("root.prod", cluster.check(job(6, 1, 1024, "prod"), PLAIN));
    assertEquals("root.a.dev", cluster.check(job(0, 0, 1024, "root.a.dev"), PLAIN));
    assertMessage("the largest gang that the cluster can hold has 6", cluster, job(7, 1, 1024, "prod"));
    assertMessage("the largest machine has 4 GPUs", cluster, job(5, 5, 1024, "prod"));
    UserError within = assertThrows(UserError.class,
        () -> cluster.check(job(6, 1, 1024, "prod"), GroupOptions.parse(List.of("isonomy.within=machine"))));
    assertEquals("--within machine: a job asks for at least 6 GPUs; the largest machine has 4 (2 machines run now)",
        within.getMessage());
    assertMessage("no running machine has as much", cluster, job(1, 1, 9000, "prod"));
    assertMessage("-queue nope: no such queue; the leaf queues are root.prod", cluster, job(1, 1, 1024, "nope"));
    assertMessage("-queue root.a: not a leaf queue", cluster, job(1, 1, 1024, "root.a"));
    assertMessage("-queue dev: there are several", cluster, job(1, 1, 1024, "dev"));
  }

  @Test
  void anErrorIsOneLineWithoutTheServersTrace() {
    String answered = "org.apache.hadoop.X: the queue\n is stopped\n\tat a.B.c(B.java:1)\n\tat d.E.f(E.java:2)\n";
    assertEquals("org.apache.hadoop.X: the queue is stopped", OneLineErrors.oneLine(new Exception(answered)));
    assertEquals("java.lang.Exception", OneLineErrors.oneLine(new Exception()));
    Exception refused = NetUtils.wrapException("nn", 9000, "here", 0, new ConnectException("Connection refused"));
    assertEquals("nn:9000 cannot be reached; is HDFS (core-site.xml) or YARN (yarn-site.xml) up there?",
        OneLineErrors.oneLine(refused));
    String denied = "Permission denied: user=ann, access=WRITE, inode=\"/user\":root:supergroup:drwxr-xr-x";
    assertEquals(denied + "; HDFS has no home folder /user/NAME for you: an admin makes it",
        OneLineErrors.oneLine(new IOException(denied)));
    assertEquals("no host other is known here", OneLineErrors.oneLine(new UnknownHostException("other")));
    assertEquals("--queue a-b: write --queue", new UserError("-queue a-b: write -queue").getMessage());
  }

  @Test
  void aJobWaitsWhereNoMachineRunsYet() throws Exception {
    ClusterCheck started = new ClusterCheck(List.of("root.prod"), List.of("root"), List.of());
    assertEquals("root.prod", started.check(job(7, 1, 9000, "prod"), PLAIN));
    assertMessage("-queue nope: no such queue", started, job(1, 1, 1024, "nope"));
    ClusterCheck one = new ClusterCheck(List.of("root.prod"), List.of("root"), List.of(node(8192, 8, 4)));
    assertMessage("the largest gang that the cluster can hold has 4 (one machine runs now)", one, job(6, 1, 1024, "prod"));
  }

  private static void assertMessage(String part, ClusterCheck cluster, JobSpec job) {
    UserError error = assertThrows(UserError.class, () -> cluster.check(job, PLAIN));
    assertTrue(error.getMessage().contains(part), error.getMessage());
  }

  @Test
  void theAppSpecHoldsAllButTheToken() throws Exception {
    Configuration conf = new Configuration(false);
    conf.set("fs.defaultFS", "file:///");
    RunJobParameters parameters = StockCli.parse("-worker_resources", "memory=1G,vcores=1,gpu=2",
        "-worker_launch_cmd", "python train.py", "-tensorboard", "-quicklink", "UI=http://worker-0:8080",
        "-num_workers", "2", "-num_ps", "3", "-ps_resources", "memory=512M,vcores=1", "-ps_launch_cmd", "python ps.py");
    JobSpec parsed = JobSpec.of(parameters, PLAIN);
    JobSpec job = new JobSpec(parsed.name(), parsed.queue(), parsed.worker(), parsed.gpusPerJob(),
        parsed.localizations(), parsed.input(), null, null, parsed.tensorboard(), parsed.quicklinks(),
        parsed.servers());
    String text = AppSpec.toJson(job, GroupOptions.parse(List.of("isonomy.slowdown=1,1.1,1.3")), new AppSpec.Submission("application_1_0001", "ada", "root.prod",
        "hdfs://nn:8020/staging", "https://nn:9871", "a certificate", "/opt/python", new AgentToken("secret!", "arbiter:1", ""),
        List.of()), conf);
    JsonNode spec = new ObjectMapper().readTree(text);
    assertFalse(text.contains("secret!"));
    assertEquals("arbiter:1", spec.get("arbiter").asText());
    assertEquals("a certificate", spec.get("webhdfs_ca").asText());
    assertEquals("root.prod", spec.get("queue").asText());
    assertEquals(4, spec.get("gpus_per_job").asInt());
    assertEquals("{\"count\":3,\"memory_mb\":512,\"vcores\":1,\"launch_cmd\":\"python ps.py\"}",
        spec.get("servers").toString());
    assertEquals("{\"launch_cmd\":\"python train.py\",\"memory_mb\":1024,\"vcores\":1,\"gpus\":2,\"count\":2,\"env\":{}}",
        spec.get("worker").toString());
    assertTrue(spec.get("search_space").isNull());
    assertTrue(spec.get("tensorboard").asBoolean());
    assertEquals("[{\"label\":\"UI\",\"protocol\":\"http://\",\"host\":\"worker-0\",\"port\":8080}]",
        spec.get("quicklinks").toString());
    assertEquals("{\"isonomy.slowdown\":\"1,1.1,1.3\"}", spec.get("conf").toString());
    assertEquals("[1.0,1.1,1.3]", spec.get("slowdown").toString());
  }

  @Test
  void resultsLieOnTheHdfsThatIsWrittenTo() throws Exception {
    Configuration conf = new Configuration(false);
    conf.set("fs.defaultFS", "hdfs://127.0.0.1:8020");
    assertEquals("hdfs://127.0.0.1:8020/models/x", savedModel("/models/x", "http://127.0.0.1:9870", conf));
    for (String place : List.of("hdfs:///models/x", "hdfs://127.0.0.1/models/x", "webhdfs://127.0.0.1:9870/models/x")) {
      assertTrue(savedModel(place, "http://127.0.0.1:9870", conf).endsWith("/models/x"), place);
    }
    for (String place : List.of("s3a://bucket/x", "s3a://127.0.0.1/x", "hdfs://127.0.0.9:8020/x", "file:///x",
        "viewfs://c/x", "//models/x")) {
      UserError error = assertThrows(UserError.class, () -> savedModel(place, "http://127.0.0.1:9870", conf), place);
      assertEquals("--saved_model_path " + place
          + ": results are written to hdfs://127.0.0.1:8020; give a path there", error.getMessage());
    }
  }

  @Test
  void resultsMayLieAtAnAddressOfTheNameserviceOrBehindViewfs() throws Exception {
    Configuration conf = new Configuration(false);
    conf.set("dfs.nameservices", "ns,other");
    conf.set("dfs.ha.namenodes.ns", "a,b");
    conf.set("dfs.namenode.rpc-address.ns.a", "127.0.0.1:8020");
    conf.set("dfs.namenode.rpc-address.ns.b", "127.0.0.2:8020");
    conf.set("dfs.namenode.rpc-address.other", "127.0.0.3:8020");
    conf.set("dfs.client.failover.proxy.provider.ns",
        "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider");
    conf.set("fs.viewfs.mounttable.c.link./models", "hdfs://ns/models");
    for (String fs : List.of("hdfs://ns", "viewfs://c")) {
      conf.set("fs.defaultFS", fs);
      for (String place : List.of("/models/x", fs + "/models/x", "hdfs://ns/models/x", "hdfs://127.0.0.2/models/x")) {
        assertTrue(savedModel(place, "http://127.0.0.1:9870;http://127.0.0.2:9870", conf).endsWith("/models/x"), place);
      }
      assertThrows(UserError.class, () -> savedModel("hdfs://other/models/x", "http://127.0.0.1:9870", conf));
    }
  }

  private static String savedModel(String place, String webhdfs, Configuration conf) throws IOException {
    JobSpec job = new JobSpec("x", "default", null, 1, List.of(), "/", null, place, false, List.of(),
        JobSpec.Servers.NONE);
    return (String) AppSpec.paths(job, webhdfs, conf).get("saved_model");
  }

  @Test
  void webHdfsComesFromTheNameNodes() throws Exception {
    Configuration conf = new Configuration(false);
    conf.set("fs.defaultFS", "hdfs://nn1:8020");
    SiteConf site = new SiteConf(new Configuration(false), conf);
    assertEquals("http://nn1:9870", site.webhdfs());
    conf.set("dfs.namenode.http-address", "0.0.0.0:1234");
    assertEquals("http://nn1:1234", site.webhdfs());
    conf.set("fs.defaultFS", "hdfs://ns");
    conf.set("dfs.nameservices", "ns");
    conf.set("dfs.ha.namenodes.ns", "a,b");
    conf.set("dfs.namenode.http-address.ns.a", "ha:9870");
    conf.set("dfs.namenode.http-address.ns.b", "hb:9870");
    assertEquals("http://ha:9870;http://hb:9870", site.webhdfs());
    conf.set("fs.defaultFS", "file:///");
    assertThrows(UserError.class, site::webhdfs);
  }

  @Test
  void theCertificatesOfWebHdfsAreReadFromTheirFile(@TempDir Path folder) throws Exception {
    Configuration site = new Configuration(false);
    SiteConf conf = new SiteConf(site, new Configuration(false));
    assertEquals("", conf.webhdfsCa());
    Path file = folder.resolve("ca.pem");
    site.set("isonomy.webhdfs.ca", file.toString());
    assertMessage(conf, "cannot be read");
    String pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    Files.writeString(file, pem);
    assertEquals(pem, conf.webhdfsCa());
    Files.writeString(file, pem + "-----BEGIN PRIVATE KEY-----");
    assertMessage(conf, "must hold certificates alone");
  }

  private static void assertMessage(SiteConf conf, String part) {
    UserError error = assertThrows(UserError.class, conf::webhdfsCa);
    assertTrue(error.getMessage().contains(part), error.getMessage());
  }

  private static JobSpec job(long gpusPerJob, long gpusPerWorker, long memoryMb, String queue) {
    return new JobSpec("j", queue, new JobSpec.Worker("true", memoryMb, 1, gpusPerWorker, 1, java.util.Map.of()), gpusPerJob,
        List.of(), null, null, null, false, List.of(), JobSpec.Servers.NONE);
  }

  private static Resource node(long memoryMb, int vcores, long gpus) {
    Resource resource = Resource.newInstance(memoryMb, vcores);
    resource.setResourceValue(ResourceInformation.GPU_URI, gpus);
    return resource;
  }

  private static GroupOptions plain() {
    try {
      return GroupOptions.parse(List.of());
    } catch (UserError e) {
      throw new AssertionError(e);
    }
  }
}
