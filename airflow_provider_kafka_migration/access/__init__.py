"""Access control: ACLs, SCRAM users and client quotas on the target, and what a principal needs."""
