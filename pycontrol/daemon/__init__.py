"""The control plane as a process."""
