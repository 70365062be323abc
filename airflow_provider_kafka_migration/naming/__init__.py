"""Names of remote topics: how a mirror makes them, and what they say about where a topic came from. No I/O."""
