"""Real parts for tests, the demo and benchmarks: brokers, S3, Airflow, load and an independent comparison.

Not part of the wheel, and it uses no product code, so that what it finds is independent of what it checks.
"""
