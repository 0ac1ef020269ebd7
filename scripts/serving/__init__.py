"""Servers for development and tests, behind `scripts/services`. Standard library only, Linux only."""
