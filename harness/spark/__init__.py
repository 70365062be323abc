"""Real Spark clusters: standalone, Connect, YARN, and environments with other versions."""
