"""Experiments that measure the papers' claims: one per figure or table, each with its assumptions."""
