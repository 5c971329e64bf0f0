"""Where the tensors of running sessions live, and the steps that move them."""
