"""The scheduler on a clock that jumps: what a card would do under a load, on any machine."""
