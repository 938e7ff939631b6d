"""A real Hadoop as plain processes on one machine: NameNode, DataNode, ResourceManager, NodeManagers."""

from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
