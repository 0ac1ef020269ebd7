"""Files that survive: written whole or not at all, and never over one another."""
