"""Cluster administration with typed values: topics, configs, access, groups, producers."""
