"""The way back: a migration from the new cluster to the old one, behind what the first migration has copied."""
