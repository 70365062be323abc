"""The record of a migration: what phases read of each other, from the journal and the stores."""
