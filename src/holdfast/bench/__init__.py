"""Side-by-side measurements: every side in one run, warm, on the same data, taking turns."""
