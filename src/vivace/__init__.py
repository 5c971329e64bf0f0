"""A realtime speech server for Qwen3-TTS."""
