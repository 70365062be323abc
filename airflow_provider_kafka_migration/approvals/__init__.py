"""Approvals: the facts a person sees, the check of the answer, and what an accepted answer does."""
