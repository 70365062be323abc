"""Administration of a cluster, as typed values: topics, configs, access, groups, producers."""
