"""Changes on the source after the plan: detecting them and bringing them to the target."""
