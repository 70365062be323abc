"""``make demo``: a whole migration on this machine, under live load, compared independently at the end.

Like ``harness/`` it uses no product code; it uses the product as its users do: through the DAG, over Airflow's REST
API, and on the command line.
"""
