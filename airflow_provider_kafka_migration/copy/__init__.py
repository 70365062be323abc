"""The data plane of one lane: source, archive, transform, layout, append; and how it resumes from the target's log."""
