"""Code shared by the Airflow folders: tasks, params, connections, progress, Spark submission."""
