"""Pages for people: the plan, the text of an approval, the report."""
