"""Comparison of contents: source and target, record by record, in ranges that are proven once."""
