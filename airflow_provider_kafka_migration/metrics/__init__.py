"""Metrics of copy jobs: which there are, what they are made of, and how they are offered."""
