"""Takes over logs that hold content on both sides: where the copy begins, and the proof of it."""
