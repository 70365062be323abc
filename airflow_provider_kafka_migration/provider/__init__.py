"""What the Airflow folders share: tasks, params, connections, progress, Spark submission."""
