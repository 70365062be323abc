"""Topics on the target: create, configure, move to the source's log starts, probe; and measure each partition's lag."""
