"""Everything that runs on Spark: the session, the job of an epoch, and the operators inside its tasks.

Only what Classic and Connect sessions both have is used here: the DataFrame API, `mapInArrow`,
`TaskContext` inside tasks, tags and interrupts.
"""
