"""The conformance suite for app schedulers; nothing of the product imports it."""
