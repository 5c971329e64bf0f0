"""The loop in a process of its own, so that sockets and encoders never hold its interpreter."""
