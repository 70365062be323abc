"""Consumer groups: their offsets on both clusters, translation, commits, and groups that are left out."""
