"""The plan: a snapshot of the source, the verdict of each partition, and how the plan grows with the source."""
