"""What a user writes: a pure description of a flow, and the planner that cuts it into stages."""
