-- One row: why a plant could be lost on this cluster, or NULL.
-- $1 is the name of the table with its schema, and $2 the statement that distributes it.
SELECT CASE
WHEN (SELECT groupid FROM pg_dist_local_group) <> 0 THEN 'is on a worker of Citus; name the coordinator in the URL'
WHEN NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1::regclass AND partmethod = 'h') THEN
    'is not distributed by a hash of id; its owner must send: ' || $2
WHEN EXISTS (SELECT FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) WHERE logicalrelid = $1::regclass
    GROUP BY shardid HAVING count(*) > 1) THEN 'has a replication factor above 1'
-- A former coordinator answers by its old map. A node that is down does not respond.
ELSE (SELECT 'is on a coordinator that not every node names; the nodes name ' || string_agg(DISTINCT result, ', ')
    FROM run_command_on_all_nodes('SELECT nodename || '':'' || nodeport FROM pg_dist_node WHERE groupid = 0')
    WHERE success HAVING count(DISTINCT result) > 1) END
