"""The behaviours that a reviewer asks about first, as text: what happens, and what the Arbiter did of it."""
