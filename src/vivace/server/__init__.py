"""The HTTP edge: reads requests, checks them once, and sends speech while it is being made."""
