"""Phases of mirrors: a copy that goes on until it is paused, promoted or ended."""
