"""What a Qwen3-TTS checkpoint computes, in plain torch: weights in modules, state in values."""
