"""Faults: what disturbs a run of copiers, at which moment, and how the damage is counted afterwards."""
