"""Comparison of contents: source and target, record by record, in ranges that need to be proven only once."""
