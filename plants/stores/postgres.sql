-- Reasons why the table could lose or alter a plant without an error, the most important first. $1 is true if the store
-- has seen the table before; a missing table is then lost, not new. With Citus, a table that is not distributed exists
-- on one node only, and an id in it could be added again through another node.
-- Look the table up in pg_class: to_regclass also finds one that another transaction has just created, and whose columns
-- this statement does not see yet.
WITH RECURSIVE root AS (SELECT (SELECT oid FROM pg_class WHERE oid = to_regclass('plants')) AS root),
tree AS (SELECT root AS t FROM root WHERE root IS NOT NULL UNION ALL
    SELECT inhrelid FROM tree, pg_inherits WHERE inhparent = t),
citus AS (SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') AS has_citus),
faults (priority, fault) AS (
SELECT 1, 'is in a database whose encoding is not UTF8' WHERE current_setting('server_encoding') <> 'UTF8'
UNION ALL SELECT 2, CASE WHEN has_citus AND NOT $1::boolean THEN
    'is missing; on the coordinator, its operator must send: '
    'CREATE TABLE plants (id bigint PRIMARY KEY, name text NOT NULL, tag text); '
    'SELECT create_distributed_table(''plants'', ''id'', shard_count => 64); GRANT SELECT, INSERT ON plants TO '
    || current_user || '; ALTER ROLE ' || current_user || ' SET synchronous_commit = on' ELSE 'is gone' END
    FROM root, citus WHERE root IS NULL
UNION ALL SELECT 3, 'is local to one node; on the coordinator, its operator must send: '
    'SELECT create_distributed_table(''plants'', ''id'', shard_count => 64)'
    FROM root, citus WHERE root IS NOT NULL AND has_citus AND NOT EXISTS (SELECT FROM pg_trigger, pg_proc AS function
    WHERE tgrelid = root AND tgfoid = function.oid AND proname = 'citus_truncate_trigger')
UNION ALL SELECT 4, 'is UNLOGGED, or is no table' FROM pg_class, tree
    WHERE oid = t AND (relpersistence <> 'p' OR relkind NOT IN ('r', 'p'))
UNION ALL SELECT 5, 'inherits from a table, is inherited from, or is a partition' FROM pg_inherits, pg_class, root
    WHERE oid = inhrelid AND (inhrelid = root OR inhparent = root AND NOT relispartition)
UNION ALL SELECT 6, 'lacks one of id bigint, name text, tag text' FROM root WHERE root IS NOT NULL AND (SELECT count(*)
    FROM pg_attribute WHERE attrelid = root AND (attname, atttypid) IN
    (('id', 'bigint'::regtype), ('name', 'text'::regtype), ('tag', 'text'::regtype))) < 3
UNION ALL SELECT 7, 'has no unique key on id alone' FROM root WHERE root IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index, pg_attribute WHERE indrelid = root AND attrelid = root AND attname = 'id' AND indisunique
    AND indisvalid AND indimmediate AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attnum)
UNION ALL SELECT 8, 'has the trigger ' || tgname FROM pg_trigger, tree WHERE tgrelid = t AND NOT tgisinternal
    AND tgenabled <> 'D' AND tgtype & 4 > 0
UNION ALL SELECT 9, 'has the rule ' || rulename FROM pg_rewrite, tree WHERE ev_class = t AND ev_type = '3'
UNION ALL SELECT 10, 'is on a server with fsync = off' WHERE current_setting('fsync', true) = 'off')
SELECT fault FROM faults ORDER BY priority
