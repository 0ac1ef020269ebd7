"""The columnar, log-structured, epoch-versioned state store: layers of sorted, immutable Arrow runs.

Imports NumPy, Arrow and `core`; knows nothing of Spark, of the ledger or of who writes when.
"""
