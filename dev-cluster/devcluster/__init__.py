"""A real Hadoop as plain processes on one machine: NameNode, DataNode, ResourceManager, NodeManagers."""
