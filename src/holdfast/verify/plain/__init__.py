"""Crashes a plain Structured Streaming job, which knows nothing of Holdfast, and judges its sink likewise."""
