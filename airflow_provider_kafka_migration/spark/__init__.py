"""The data plane on Spark: lanes as rows, one slice per task. Record batches never enter a DataFrame or the JVM.

Spark schedules, retries and distributes; executors open their own sockets and move the bytes (docs/decisions/0003).
This folder and ``spark_jobs/`` are the only places that import pyspark.
"""

#: Environment variable of a driver below the process that follows it, and shows the job's progress by itself.
IS_FOLLOWED = "KAFKA_MIGRATION_DRIVER_IS_FOLLOWED"
