"""What runs the Arbiter: its thread, its inbox, its journal."""
