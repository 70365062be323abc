"""Real parts for tests, the demo and benchmarks: brokers, S3, Airflow, load and an independent comparison.

It is not part of the wheel, and it uses no product code, so that its results are independent of the code it checks.
"""
