"""Experiments on the accuracy of estimated starts."""
