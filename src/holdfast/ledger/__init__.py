"""The transactional truth: what was planned, what was done, who may commit, and why."""
