"""How we speak to clusters: admin calls, the raw protocol, record batches."""

from __future__ import annotations

import warnings

# kafka-python reads its message schemas with a deprecated function; where warnings are logged (Airflow's tasks) that
# would be some hundred lines at the first import.
warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
