"""Copiers in processes of their own, which tests start in milliseconds and kill."""
