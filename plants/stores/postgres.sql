-- One row: the first reason why the table could lose or alter a plant without an error; the statement that adds the
-- nullable columns that it lacks; its oid, its name with its schema, and the oids of the tables that have its rows.
-- $1 is the oid of the table that the store found first, or 0; $2 the table's name; $3, $4 and $5 are the names and types
-- of its columns, and whether each is nullable.
-- Look the table up in pg_class: to_regclass also finds one that another transaction has just created, and whose columns
-- this statement does not see yet.
WITH RECURSIVE root AS (SELECT oid AS root, relnamespace::regnamespace::text || '.plants' AS full_name
    FROM (VALUES (1)) AS one_row LEFT JOIN pg_class ON oid = to_regclass($2)),
tree AS (SELECT root AS t FROM root WHERE root IS NOT NULL UNION ALL
    SELECT inhrelid FROM tree, pg_inherits WHERE inhparent = t),
lacking AS (SELECT name, type, nullable AND attname IS NULL AS can_be_added FROM root
    CROSS JOIN unnest($3::text[], $4::text[], $5::boolean[]) AS expected (name, type, nullable)
    LEFT JOIN pg_attribute ON attrelid = root AND attname = name AND NOT attisdropped
    WHERE root IS NOT NULL AND atttypid IS DISTINCT FROM type::regtype),
faults (priority, fault) AS (
SELECT 1, 'is in a database whose encoding is not UTF8' WHERE current_setting('server_encoding') <> 'UTF8'
UNION ALL SELECT 2, 'is another one than the service has used; restore that one, or restart if this one has all of '
    'its plants' FROM root WHERE $1::oid <> 0 AND root <> $1::oid
UNION ALL SELECT 4, 'is UNLOGGED, or is no table' FROM pg_class, tree
    WHERE oid = t AND (relpersistence <> 'p' OR relkind NOT IN ('r', 'p'))
UNION ALL SELECT 5, 'inherits from a table, is inherited from, or is a partition' FROM pg_inherits, pg_class, root
    WHERE oid = inhrelid AND (inhrelid = root OR inhparent = root AND NOT relispartition)
UNION ALL SELECT 6, 'lacks ' || string_agg(name || ' ' || type, ', ') FROM lacking WHERE NOT can_be_added
    HAVING count(*) > 0
UNION ALL SELECT 7, 'has no unique key on id alone' FROM root WHERE root IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index, pg_attribute WHERE indrelid = root AND attrelid = root AND attname = 'id' AND indisunique
    AND indisvalid AND indimmediate AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attnum)
UNION ALL SELECT 8, 'has the trigger ' || tgname FROM pg_trigger, tree WHERE tgrelid = t AND NOT tgisinternal
    AND tgenabled <> 'D' AND tgtype & 4 > 0
UNION ALL SELECT 9, 'has the rule ' || rulename FROM pg_rewrite, tree WHERE ev_class = t AND ev_type = '3'
UNION ALL SELECT 10, 'is on a server with fsync = off' WHERE current_setting('fsync', true) = 'off')
SELECT (SELECT fault FROM faults ORDER BY priority LIMIT 1),
    (SELECT 'ALTER TABLE ' || full_name || ' ' || string_agg('ADD COLUMN IF NOT EXISTS ' || name || ' ' || type, ', ')
    FROM lacking WHERE can_be_added), root, full_name, ARRAY(SELECT t FROM tree) FROM root
