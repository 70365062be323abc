"""The schemas of a migration: read, planned, written to the target registry, and verified there."""
