"""DataFrames of Kafka's records: topics of a cluster, and the segments of an archive."""
