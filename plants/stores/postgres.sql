-- Reasons why the table could reject or lose a plant, the most important first. $1 is true if the store has seen the
-- table before; a missing table is then lost, not new. With Citus, a table that is not distributed exists on one node
-- only, and an id in it could be added again through another node.
WITH RECURSIVE root AS (SELECT to_regclass('plants')::oid AS root),
tree AS (SELECT root AS t FROM root WHERE root IS NOT NULL UNION ALL
    SELECT inhrelid FROM tree, pg_inherits, pg_class WHERE inhparent = t AND oid = inhrelid AND relispartition),
citus AS (SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') AS has_citus),
root_columns AS (SELECT a.*, attname IN ('id', 'name', 'tag') AS is_ours,
    attname IN (SELECT attname FROM pg_attribute, tree WHERE attrelid = t AND attnotnull) AS is_required
    FROM pg_attribute a, root WHERE attrelid = root AND attnum > 0 AND NOT attisdropped),
faults (priority, fault) AS (
SELECT 1, 'is in a database whose encoding is not UTF8' WHERE current_setting('server_encoding') <> 'UTF8'
UNION ALL SELECT 2, CASE WHEN has_citus AND NOT $1::boolean THEN 'is missing; its operator must create it: '
    'CREATE TABLE plants (id bigint PRIMARY KEY, name text NOT NULL, tag text); '
    'SELECT create_distributed_table(''plants'', ''id'')' ELSE 'is gone' END FROM root, citus WHERE root IS NULL
UNION ALL SELECT 3, 'is local to one node; its operator must distribute it: '
    'SELECT create_distributed_table(''plants'', ''id'')'
    FROM root, citus WHERE root IS NOT NULL AND has_citus AND NOT EXISTS (SELECT FROM pg_trigger, pg_proc AS function
    WHERE tgrelid = root AND tgfoid = function.oid AND proname = 'citus_truncate_trigger')
UNION ALL SELECT 4, 'is UNLOGGED, has row security, is a partition, or is no table' FROM pg_class, tree, root WHERE
    oid = t AND (relpersistence <> 'p' OR relrowsecurity OR relispartition AND t = root OR relkind NOT IN ('r', 'p'))
UNION ALL SELECT 5, 'lacks one of id bigint, name text, tag text' WHERE (SELECT count(*) FROM root_columns WHERE
    (attname, atttypid) IN (('id', 'bigint'::regtype), ('name', 'text'::regtype), ('tag', 'text'::regtype))) < 3
UNION ALL SELECT 6, 'has a column that rejects the store''s inserts: ' || attname FROM root_columns WHERE CASE
    WHEN is_ours THEN attidentity = 'a' OR attgenerated <> '' OR attname = 'tag' AND is_required
    ELSE is_required AND NOT atthasdef AND attidentity = '' END
UNION ALL SELECT 7, 'has no unique key on id alone' FROM root WHERE NOT EXISTS (SELECT FROM pg_index, root_columns
    WHERE indrelid = root AND attname = 'id' AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL
    AND indnkeyatts = 1 AND indkey[0] = attnum)
UNION ALL SELECT 8, 'has another unique key' FROM pg_index, pg_attribute, tree WHERE indrelid = t AND attrelid = t
    AND attname = 'id' AND indisunique AND NOT attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
UNION ALL SELECT 9, 'has no partition for some ids' FROM pg_partitioned_table, tree WHERE partrelid = t
    AND partdefid = 0 AND (SELECT CASE partstrat
        WHEN 'h' THEN round(sum(1 / substring(bound FROM 'modulus (\d+)')::numeric), 9) = 1
        -- translate() turns MINVALUE and MAXVALUE into ''. If there is no gap, each upper bound is also a lower bound.
        WHEN 'r' THEN array_agg(bounds[1] ORDER BY bounds[1]) = array_agg(bounds[2] ORDER BY bounds[2]) END
    FROM (SELECT pg_get_expr(relpartbound, oid) AS bound, regexp_match(translate(pg_get_expr(relpartbound, oid),
        'MINAXVLUE', ''), '\((.*)\).*\((.*)\)') AS bounds FROM pg_inherits, pg_class
        WHERE inhparent = t AND oid = inhrelid) AS parts) IS NOT TRUE
UNION ALL SELECT 10, 'has the constraint ' || conname FROM pg_constraint, tree WHERE conrelid = t
    AND contype IN ('c', 'f', 'x')
UNION ALL SELECT 11, 'has the trigger ' || tgname FROM pg_trigger, tree WHERE tgrelid = t AND NOT tgisinternal
    AND tgenabled <> 'D' AND tgtype & 4 > 0
UNION ALL SELECT 12, 'has the rule ' || rulename FROM pg_rewrite, tree WHERE ev_class = t AND ev_type = '3'
UNION ALL SELECT 13, 'is on a server with fsync = off' WHERE current_setting('fsync', true) = 'off')
SELECT fault FROM faults ORDER BY priority
