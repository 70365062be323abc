"""``make demo``: a whole migration on this machine, under live load, compared independently at the end.

Like ``harness/`` it uses no product code; the product is used as people use it: through its DAG, over Airflow's REST
API, and by its command line.
"""
