"""Where rows leave the system: one file a target, one contract for all."""
