"""Sockets on which text comes while it is being spoken."""
