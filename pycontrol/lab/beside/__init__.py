"""The newest systems on their own ground: their traces, clusters and published results, and the Arbiter beside them."""
