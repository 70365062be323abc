"""The record of a migration: what phases learn from each other, through the journal and the stores."""
