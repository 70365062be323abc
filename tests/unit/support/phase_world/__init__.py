"""A whole migration in memory: real journal and documents, simulated clusters, copiers and processes that die."""
