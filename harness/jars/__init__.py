"""Jars from Maven repositories: fetched once, checked against committed checksums, then used offline."""
