"""Words that every other package shares. Imports nothing but the standard library."""
