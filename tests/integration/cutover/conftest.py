"""Makes the support module importable."""
