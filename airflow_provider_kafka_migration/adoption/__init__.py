"""Adopted logs: partitions whose copy begins behind content that is already on both clusters."""
