"""Output logs: segments as Parquet files, and what of them must be kept."""
