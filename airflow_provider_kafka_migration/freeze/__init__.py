"""Producer freezes: how they are requested, verified, held and lifted, and how late writers are named."""
