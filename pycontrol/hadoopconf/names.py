"""Names of files, classes and resources."""

CORE, HDFS, YARN = "core-site.xml", "hdfs-site.xml", "yarn-site.xml"
SCHEDULER, TYPES, NODE = "capacity-scheduler.xml", "resource-types.xml", "node-resources.xml"
ISONOMY, SUBMARINE = "isonomy.yaml", "submarine-site.xml"
GPU = "yarn.io/gpu"
OUR_SCHEDULER = "isonomy.yarn.IsonomyScheduler"
OUR_WEB = "isonomy.yarn.IsonomyWebServices"
WEB_KEY = "yarn.webapp.custom.webservice.class"
OLD_WEB, OLD_WEB_KEY = "isonomy.yarn.IsonomyExternalResource", "yarn.http.rmwebapp.external.classes"
"""The class and key used instead of OUR_WEB on Hadoop 3.3 and 3.4."""
OUR_EXECUTOR, LINUX_EXECUTOR = "isonomy.nm.IsonomyContainerExecutor", "isonomy.nm.IsonomyLinuxContainerExecutor"
OUR_EXECUTORS = (OUR_EXECUTOR, LINUX_EXECUTOR)
OUR_RUNTIME = "isonomy.submarine.IsonomyRuntimeFactory"
DOMINANT = "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
HADOOP_VERSIONS = ("3.3", "3.4", "3.5")
