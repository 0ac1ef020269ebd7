"""Pure decisions: no I/O, no threads, no clock, no Spark. What time it is, is an argument."""
