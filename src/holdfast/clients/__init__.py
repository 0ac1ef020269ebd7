"""Clients of servers that a source and a sink share: how they are set up, what their errors mean."""
