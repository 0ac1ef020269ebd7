"""What `scripts/api_reference` is made of: which names there are, and how signatures and docstrings become Markdown."""
