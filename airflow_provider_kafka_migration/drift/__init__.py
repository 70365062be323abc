"""Changes on the source after the plan: what differs, and how it is brought to the target."""
