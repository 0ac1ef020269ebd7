"""Processes: the worker that runs a flow's stages, and the loops inside it."""
