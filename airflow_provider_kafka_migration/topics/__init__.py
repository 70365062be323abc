"""Topics on the target: created, configured, taken to the source's log starts, probed; the lag of each."""
