"""What an Agent decides, as values: which jobs get which GPUs, and what it answers to an offer.

The Agent in an app's AM and the simulated one both decide by this and by nothing else.
"""
