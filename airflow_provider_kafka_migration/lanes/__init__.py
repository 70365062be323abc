"""Which process runs which lane and when: assignment, leases, slices, progress and figures of a copy job."""
