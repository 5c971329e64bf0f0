"""Who runs next. Pure: no torch, no asyncio, no clock; time is an argument."""
