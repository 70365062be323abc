"""Speaks to schema registries over HTTP. Imports nothing of this package but ``errors``."""
