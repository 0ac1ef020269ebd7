"""Every bound of the system, named, with its unit and its reason."""

from __future__ import annotations

# The key hash is cut into this many fixed ranges (its top 12 bits). Tasks own ranges of slots, so a new
# split of the state is a new set of slices and never a rewrite.
SLOTS = 4096
SLOT_SHIFT_BITS = 52

# A run larger than this is written as several, each with a hash range of its own, so that a merge step
# and a restore can take them one at a time. A lookup pays for every run it visits, so they are not small.
RUN_ROWS_MAX = 4_194_304
RUN_BYTES_MAX = 128 << 20

# What one merge step may write: the pause an epoch can see is bounded by one step.
MERGE_STEP_RUNS_MAX = 1

# A level of the spine is merged when it has this many layers: rows are rewritten once a level, and a
# lookup visits at most this many layers a level. More would write less and look up more.
MERGE_FANOUT = 5

# The bottom layer is rewritten when all above it together reach this share of it.
MERGE_BOTTOM_SHARE = 0.5

# Memory maps that a process keeps open. Each costs address space and a file descriptor, nothing else.
OPEN_RUNS_MAX = 1024

# Bloom filters take this many bits a key: with four bits set in one word, about 2% false positives.
BLOOM_BITS_PER_KEY = 12

# Tasks that may each read all of an epoch's rows themselves: with more, the exchange between them is cheaper.
DIRECT_TASKS_MAX = 8

# What one epoch may take from its inputs unless the flow says otherwise.
EPOCH_ROWS_MAX = 4_000_000
EPOCH_BYTES_MAX = 1 << 30

# A stage stops planning while a consumer of its output has more than this unread.
UNREAD_ROWS_MAX = 16_000_000
UNREAD_BYTES_MAX = 4 << 30

# Windows that one row may be in: each is a state row of its own.
WINDOWS_PER_ROW_MAX = 1_000

# Slices that a dedup's horizon is cut into: what has expired leaves a slice at a time, and a lookup visits all.
DEDUP_SLICES = 4

# Slices that the life of a key is cut into: a key that is touched moves a slice on at most so often, and what has
# expired leaves a slice at a time.
EXPIRY_SLICES = 4

# Slices that the span of a join's bounds is cut into: rows are dropped a slice at a time, and a lookup visits each
# slice that may hold a partner. Slices shorter than a second would be too many where the bounds are narrow.
JOIN_SLICES = 4
JOIN_SLICE_US_MIN = 1_000_000

# How often an idle loop looks at its inputs, when no commit in this process wakes it earlier.
POLL_MS = 200

# How often lag and state size are read from the ledger for whoever watches a run.
MEASURE_EVERY_MS = 1_000

# How often a job that failed for a reason outside the plan is tried again before the flow stops.
ATTEMPTS_PER_PLAN_MAX = 3

# Rows of the events table that are kept: the audit trail is bounded like everything else.
EVENTS_MAX = 100_000

# A writer that finds the ledger locked waits this long before it reports the ledger as unavailable.
LEDGER_BUSY_MS_MAX = 10_000

# A table sink that finds its database locked by another writer waits this long before it says so.
SINK_BUSY_MS_MAX = 10_000

# Pages of the target that a table sink's transaction keeps in memory: an upsert goes to its rows in no order.
SINK_CACHE_BYTES_MAX = 64 << 20

# Plans and manifests below every cursor and safe point that the ledger keeps, so that older files can still be
# made again by replay. What is older is folded: a file that depends on it can only come from a backup.
HISTORY_EPOCHS_MAX = 10_000

# How often what nobody needs any more is looked for and deleted.
SWEEP_EVERY_MS = 1_000

# Whoever looks at a state reads about so many stored rows at a time: its memory does not follow the state's size.
STATE_READ_ROWS_MAX = 262_144

# How often a look at a state starts over because a merge and the sweeper replaced the files under it.
STATE_READ_TRIES_MAX = 5
