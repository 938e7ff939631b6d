"""What the Arbiter's state answers to people and metrics."""
