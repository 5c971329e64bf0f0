"""Sound as bytes: sample formats, containers and streaming encoders."""
