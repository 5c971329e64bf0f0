"""Voices that are made here and kept, and ways of speaking by name."""
