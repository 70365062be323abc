"""Mirrors: what people ask of them, what runs beside them, and how they end."""
