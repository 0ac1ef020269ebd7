"""Stateful operators: each has a part in Spark SQL, before the exchange, and a part in NumPy and Arrow."""
