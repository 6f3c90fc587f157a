-- One row: why a plant could be lost on this cluster, or NULL.
-- $1 is the name of the table with its schema, and $2 the statement that distributes it.
SELECT CASE
WHEN (SELECT groupid FROM pg_dist_local_group) <> 0 THEN 'is on a worker of Citus; name the coordinator in the URL'
WHEN NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1::regclass) THEN
    'is local to one node; on the coordinator, its operator must send: ' || $2
WHEN NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1::regclass AND partmethod = 'h')
    THEN 'is not distributed by a hash of id'
WHEN EXISTS (SELECT FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) WHERE logicalrelid = $1::regclass
    GROUP BY shardid HAVING count(*) > 1) THEN 'has a replication factor above 1'
-- A node's own settings count for its commits, so ask each by its effect. A node that is down does not respond.
ELSE (SELECT 'is on a node without synchronous_commit; its operator must send: ALTER ROLE '
    || quote_ident(current_user) || ' SET synchronous_commit = on, on node ' || string_agg(nodeid::text, ', ')
    FROM run_command_on_all_nodes('SHOW synchronous_commit') WHERE success AND result IN ('off', 'local')
    HAVING count(*) > 0) END
