"""The decisions of an Agent as pure functions: which jobs get which GPUs, and what it answers to an offer.

The Agent in an app's application master and the simulated one share this code.
"""
