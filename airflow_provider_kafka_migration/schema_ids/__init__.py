"""Schema ids in records: where they are, what they become on the target, and which ones occur."""
