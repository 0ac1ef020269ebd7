"""How people meet Holdfast."""
