"""What the DAGs of migrations and of mirrors are built from: their tasks, and the files that describe them."""
