"""The Arbiter's runtime: its thread, inbox and journal."""
