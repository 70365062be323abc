"""Resuming: where a copy goes on, found in the target's own log and compared with the source."""
