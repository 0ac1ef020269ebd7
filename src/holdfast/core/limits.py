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

# Bytes of a run under one checksum. A lookup checks the blocks that it reads from: larger ones are read for a few rows,
# smaller ones cost more for each byte (3.2 us for 64 KiB, 0.36 us for 4 KiB).
CHECKSUM_BLOCK_BYTES = 64 << 10

# Rows for each block of a column from which on all of it is checked: to tell the blocks of so many rows takes longer.
CHECKSUM_ROWS_MAX = 200

# Segments that a process remembers to have found whole; each costs some 200 bytes.
CHECKED_FILES_MAX = 65_536

# Bloom filters take this many bits a key: with four bits set in one word, about 2% false positives.
BLOOM_BITS_PER_KEY = 12

# Tasks that may each read all of an epoch's rows themselves: with more, the exchange between them is cheaper.
DIRECT_TASKS_MAX = 8

# Files whose footers are read to infer a schema (about a millisecond each), and files that are judged before Spark is started:
# all of them are judged once more when they are discovered.
INFERRED_FILES_MAX = 1_000
EARLY_FILES_MAX = 100

# Tasks that read and convert the files of an epoch that Spark's reader refuses; rows of theirs that go to Spark at a time.
CONVERTING_TASKS_MAX = 64
CONVERTED_ROWS_MAX = 100_000

# Rows that make a task of their own worth while: below it, starting another costs more than it takes off the first.
TASK_ROWS = 50_000

# How often a cluster is asked how many cores it has: executors come and go, and asking takes some 20 ms.
CORES_LOOK_MS = 10_000

# Executors that are counted on where Spark adds them by demand, as far as it may: rows decide before this does.
EXECUTORS_BY_DEMAND = 64

# What one epoch may take from its inputs unless the flow says otherwise.
EPOCH_ROWS_MAX = 4_000_000
EPOCH_BYTES_MAX = 1 << 30

# A stage stops planning while a consumer of its output has more than this unread.
UNREAD_ROWS_MAX = 16_000_000
UNREAD_BYTES_MAX = 4 << 30

# While more than this is on its way round a cycle, no stage of the cycle takes anything from outside of it: as much as
# one epoch takes, so that what comes back is worked off before more comes in.
CYCLE_ROWS_MAX = 4_000_000
CYCLE_BYTES_MAX = 1 << 30

# A cycle with more than this on its way round makes rows faster than it lets go of them, and is stopped: nothing but the
# disk would bound it otherwise, as nobody may be held back by what he himself has to read.
CYCLE_ROWS_HARD_MAX = 64_000_000
CYCLE_BYTES_HARD_MAX = 16 << 30

# Windows that one row may be in: each is a state row of its own.
WINDOWS_PER_ROW_MAX = 1_000

# Different values that a count_distinct holds per key unless the flow says otherwise. Each takes 16 bytes, and an epoch
# that touches a key writes all of them again.
DISTINCT_VALUES_MAX = 100_000

# Values that a collect_list or collect_set holds per key unless the flow says otherwise: with 100 bytes each a megabyte,
# which an epoch that touches the key writes again, to the state and to the output.
COLLECTED_VALUES_MAX = 10_000

# Values that a top_k may ask for: more of a key is not a top any more, and is written again as a list is.
TOP_VALUES_MAX = 10_000

# Buckets that a percentile holds per key unless the flow says otherwise, 12 bytes each. With an error of 1% there are 64
# per power of two, so this many hold all positive numbers from 1e-230 to 1e230; with one of 0.1%, from 1e-29 to 1e29.
PERCENTILE_BUCKETS_MAX = 100_000

# The smallest relative error of a percentile: beyond it the buckets are hardly fewer than the values.
PERCENTILE_ERROR_MIN = 0.0001

# What a table that streams are enriched with may have: a copy of every version that a kept plan names is on the disk, and
# every task of an epoch gets all of it.
TABLE_ROWS_MAX = 2_000_000
TABLE_BYTES_MAX = 256 << 20
TABLE_FILES_MAX = 1_000

# How often a table is read whose files change meanwhile.
TABLE_READS_MAX = 3

# Columns and expressions of one step that Spark names when it explains a plan: what is left out cannot be checked.
PLAN_FIELDS_MAX = 1_000_000

# Slices that a dedup's horizon is cut into: what has expired leaves a slice at a time, and a lookup visits all.
DEDUP_SLICES = 4

# Slices that the life of a key is cut into: a key that is touched moves a slice on at most so often, and what has
# expired leaves a slice at a time.
EXPIRY_SLICES = 4

# Slices that the span of a join's bounds is cut into: rows are dropped a slice at a time, and a lookup visits each
# slice that may hold a partner. Slices shorter than a second would be too many where the bounds are narrow.
JOIN_SLICES = 4
JOIN_SLICE_US_MIN = 1_000_000

# Labels that a task's rows of one epoch may have on one port: all of them stand in the manifest.
LABELS_PER_SEGMENT_MAX = 10_000

# Parts of a tracker's state, each a row of the ledger with the labels of its share: a commit reads and writes those
# whose labels its epoch touched.
SUBSTREAM_SHARDS = 16

# Substreams that may be open at a time: what tracks them is read and written in whole shards.
SUBSTREAMS_OPEN_MAX = 100_000

# Substreams whose end is remembered, the newest.
SUBSTREAMS_ENDED_MAX = 10_000

# Substreams that one epoch may end: their labels stand in its plan.
ENDS_PER_EPOCH_MAX = 10_000

# How often an epoch is prepared that a target loses before it can be committed.
SINK_TRIES_MAX = 3

# How often a commit to a table of a lake is decided anew because others committed to the table in between.
LAKE_TRIES_MAX = 20

# Items that one look at a source may bring: what is written down in one transaction stays short.
ITEMS_A_LOOK_MAX = 1_000

# How often an idle loop looks at its inputs, when no commit in this process wakes it earlier.
POLL_MS = 200

# How often lag and state size are read from the ledger for whoever watches a run.
MEASURE_EVERY_MS = 1_000

# How often a job that failed for a reason outside the plan is tried again before the flow stops.
ATTEMPTS_PER_PLAN_MAX = 3

# How often in a row a follower may find files gone that its leader has let go of.
STUMBLES_MAX = 20

# Rows of the events table that are kept: the audit trail is bounded like everything else.
EVENTS_MAX = 100_000

# A writer that finds the ledger locked waits this long before it reports the ledger as unavailable: longer than any
# outage that should cost nobody anything.
LEDGER_BUSY_MS_MAX = 15_000

# Whoever waits for the lock of a ledger on SQLite looks so often at who holds it; and a process of the flow that has
# held it for so long without a commit is ended. A transaction takes milliseconds, but its last step waits for the disk;
# and those who wait must have time left when the lock is free.
LEDGER_LOOK_MS = 1_000
LEDGER_HOLD_MS_MAX = 8_000

# A ledger transaction takes milliseconds. One in PostgreSQL that has asked nothing for so long is of a process that stands
# still, and is ended by the server: before anybody who waits for its lock gives up.
LEDGER_IDLE_MS_MAX = 5_000

# No question to a ledger in PostgreSQL takes so long, its wait for the lock included.
LEDGER_STATEMENT_MS_MAX = 30_000

# A disk with less free space than this is full for a ledger in a file: its log grows by pages of 4 KiB, and a few at once.
LEDGER_FREE_BYTES_MIN = 65_536

# How long a connection to a ledger's server may take, and the pause before the next try.
LEDGER_CONNECT_MS_MAX = 5_000
LEDGER_RETRY_MS = 100

# How often one thread of a process looks whether the ledger has changed, where it is not told; how long it waits at a
# time to be told; and how long it lets the loops rest before it wakes them again: other processes write often.
NEWS_LOOK_MS = 20
NEWS_WAIT_MS = 200
NEWS_REST_MS = 100

# A hot standby that finishes an epoch so much of its length after its leader lets the next one pass, to be in step again;
# and looks so often whether that is committed.
BEHIND_SHARE_MIN = 0.25
PACE_LOOK_MS = 5

# A loop that has heard of no change looks at the ledger again after so long all the same.
LOOK_ANYWAY_MS = 10_000

# How long a killed process may take to vanish.
PROCESS_END_MS_MAX = 10_000

# A table sink that finds its database locked by another writer waits this long before it says so.
SINK_BUSY_MS_MAX = 10_000

# A session of a table sink that stands still inside a transaction is ended by the server after so long: earlier than
# whoever waits for its locks gives up.
SINK_IDLE_MS_MAX = 5_000

# A server that acknowledges nothing for so long is taken for gone.
SINK_SILENCE_MS_MAX = 30_000

# How long a sink that fails for a reason that heals by itself is offered the same epoch again, and the pause before
# each try, which doubles up to the third value: a server that is restarted costs a flow nothing but time.
SINK_HEALS_MS_MAX = 60_000
SINK_PAUSE_MS = 100
SINK_PAUSE_MS_MAX = 5_000

# Rows of an epoch from which on tasks copy them into staging side by side: below it a job costs more than it saves.
SINK_TASKS_ROWS_MIN = 500_000

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

# A worker's lease runs out when it has not been raised for so long, in time in which the worker could have run; it is
# raised so often in that time. The command line may choose another length.
LEASE_MS_MAX = 1_000
LEASE_MS_MIN = 200  # below it, two looks of the supervisor are all that would be between two raises
LEASE_RAISES = 4

# A lease that stands still for so long by the clock has run out, whatever kept its holder from running.
LEASE_WALL_MS_MAX = 60_000

# A process that has not raised its lease even once for so long, in time in which it could have run, is not going to; nor
# is one that has not for so long by the clock.
FIRST_LEASE_MS_MAX = 60_000
FIRST_LEASE_WALL_MS_MAX = 300_000

# Of the time between two looks of a supervisor, so much counts against a worker at most: what is beyond it kept the
# supervisor from looking, and may have kept the worker from running. By the clock, more: then only a supervisor that
# was stopped, or a machine that slept, is excused.
LEASE_LOOK_MS_MAX = 100
LEASE_PAUSE_MS_MAX = 5_000

# Raises by which a supervisor knows how long a worker takes for one: about a minute of them.
LEASE_INTERVALS_MAX = 256

# Every fail-over of a group that has committed nothing since the one before doubles the patience with it, up to so often.
SETBACKS_MAX = 6

# A worker whose open plan has not moved for so long, or for so many times the stage's slowest epochs, is stuck. Only time
# counts in which its JVM and Python workers neither waited for a CPU nor used more than that share of one. One that uses
# a CPU all the time has an hour.
STUCK_MS_MIN = 60_000
STUCK_EPOCHS = 4
STUCK_CPU_SHARE = 0.2
STUCK_BUSY_MS_MIN = 3_600_000

# From when on the processes of a worker are looked at for that, and how often.
STUCK_LOOK_AFTER_MS = 10_000
STUCK_LOOK_MS = 1_000

# Epochs of a stage by which it is known how long its slowest take.
STUCK_EPOCHS_KNOWN = 200

# A process that was fenced off, or struck off the list, ends by itself, or is ended after so long.
FENCED_MS_MAX = 30_000

# How often a supervisor looks at its workers, and a standby at its group, when no exit wakes it earlier.
WATCH_MS = 50

# Practice runs after which a standby is warm, and how often it practises afterwards: Spark's Python workers leave
# after a minute without work.
REHEARSALS_TO_BE_WARM = 5
REHEARSE_EVERY_MS = 20_000

# How long a task that only warms a Python worker keeps it. Others start meanwhile, and need workers of their own.
PRESENCE_MS = 200

# How long a reader outside the group may keep files from being deleted.
PIN_MS_MAX = 60_000

# A standby is not replaced before the new primary has committed something, or for so long: starting a process is heavy.
REPAIR_GROUP_AFTER_MS = 10_000

# Merging, shipping and sweeping begin with the first epoch that a worker commits when it leads, or after so long: a merge that was
# due when its predecessor died would take a core from that epoch.
UPKEEP_AFTER_MS = 1_000

# A hot standby that becomes the primary first finishes the epoch that it has under way, but sinks wait no longer than this.
LEAD_AFTER_MS = 400

# Starts in a row of a group that commits nothing in between, before the flow is given up; and the pause before each
# but the first, which doubles up to the second value.
STARTS_MAX = 5
START_PAUSE_MS = 500
START_PAUSE_MS_MAX = 30_000

# Workers get ready one after the other. One that takes longer than this no longer keeps the next from beginning.
START_MS_MAX = 60_000

# How long a reader waits for another worker to make a lost file again.
REPAIR_MS_MAX = 300_000

# How long a worker that is told to stop may go on with the epochs that are under way: small ones take less. What takes longer
# is interrupted, and is run again by the next one from the plan that is open: Spark alone needs two seconds to end, and a stop
# is to take less than three. An epoch of rows that a source cannot give again gets longer, as it could not be. And when its
# supervisor stops waiting for it.
FINISH_MS_MAX = 300
FINISH_ONCE_ONLY_MS_MAX = 20_000
STOP_MS_MAX = 60_000

# How long a stream that is stopped may go on with the batch that it is about to log.
STREAM_STOP_MS_MAX = 5_000

# How long somebody who asks for a fail-over waits for a supervisor to do it.
FAILOVER_MS_MAX = 15_000

# How long Spark's Connect server may take to listen.
SERVER_START_MS_MAX = 120_000

# How long one process of a verification run may take, all its epochs included.
VERIFY_RUN_MS_MAX = 180_000

# How long one question to a Kafka cluster may take; and how long a cluster may be away, which is longer than a rolling
# restart of a broker, before the flow says so and stops.
KAFKA_ANSWER_MS_MAX = 5_000
KAFKA_OUTAGE_MS_MAX = 60_000

# A transaction that nobody ends is ended by Kafka after so long; until then, readers see nothing that came after it.
KAFKA_TRANSACTION_MS_MAX = 120_000

# Messages that an item of a Kafka source may span, and items that may wait to be read: while stages are busy, the next
# item grows instead of there being more of them.
KAFKA_ITEM_ROWS_MAX = 1_000_000
KAFKA_ITEMS_UNREAD_MAX = 3

# Messages that one task reads: enough that connecting to the cluster does not count.
KAFKA_TASK_ROWS_MAX = 250_000

# Messages that the client hands over at a time; and how long it may wait for more when it has some.
KAFKA_BATCH_ROWS_MAX = 10_000
KAFKA_BATCH_MS = 20

# What an Arrow payload may hold: well below the million bytes that a topic takes unless it is told otherwise.
KAFKA_ARROW_BYTES_MAX = 500_000

# Partitions of the topic with the sinks' records: a transaction that hangs holds up the sinks of one of them only.
KAFKA_RECORDS_PARTITIONS = 16
# The newest records, among which that of a sink in use is found without reading the rest.
KAFKA_RECORDS_NEWEST = 1_000

# Snapshots that are over and cannot be returned to, as `holdfast snapshot list` shows them.
SNAPSHOTS_REMEMBERED_MAX = 100

# How deep into the values that a function of the user's reaches its fingerprint looks; deeper ones count by their type.
CODE_DEPTH_MAX = 20
