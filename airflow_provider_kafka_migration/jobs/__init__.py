"""Jobs: what is written for a runner or an engine, what it submitted, and how the copy it runs is doing."""
