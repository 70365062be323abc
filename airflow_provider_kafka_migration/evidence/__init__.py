"""The evidence of a migration: the bundle, its signature, its upload and its verification."""
