"""Communication with Kafka clusters: admin calls, the raw protocol, record batches."""

from __future__ import annotations

import warnings

# kafka-python reads its message schemas with a deprecated function. Where warnings are logged (Airflow's tasks), the
# first import would log about a hundred lines.
warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
