"""What the bytes of keys and values show about schema ids."""
