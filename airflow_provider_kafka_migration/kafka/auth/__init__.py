"""Logins to brokers: SASL dialogues, OAuth tokens, Kerberos tickets, and TLS files that are renewed."""
