"""Benchmarks: copiers side by side on the same brokers and the same data; see docs/benchmarks.md.

``python -m benchmarks`` (``make bench``), ``python -m benchmarks.groups`` (``make bench-groups``) and
``python -m benchmarks.lanes``.
"""
