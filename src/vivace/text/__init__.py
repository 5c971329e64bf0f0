"""From what a client writes to token ids."""
