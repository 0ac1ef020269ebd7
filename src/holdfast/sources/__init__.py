"""Where rows come from: one file a kind of source, one contract for all."""
