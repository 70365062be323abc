"""What clients and operators know from MirrorMaker 2: its state topics, in its own formats."""
