"""Where Spark jobs run: ``spark-submit`` and the services that run Spark, behind one protocol (``base.SparkEngine``).

An engine submits a job, says how it is, and cancels it. What the job does, its progress and its result go through
storage, so an engine knows nothing of partitions. Hooks of Airflow's providers are imported inside of functions: most
users have only some of them installed.
"""
