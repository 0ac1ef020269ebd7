"""What a flow does when it is broken on purpose, judged by what a reader of its sinks saw."""
