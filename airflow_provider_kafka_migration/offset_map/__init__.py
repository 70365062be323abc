"""The offset map: runs of source and target offsets, how they are stored, and maps of transactional copies."""
