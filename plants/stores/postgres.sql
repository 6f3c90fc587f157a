-- One row: the first reason why the table could lose or alter a plant without an error; the statement that adds the
-- nullable columns that the table lacks; its name with its schema; the role; and whether this is Citus.
-- $1 is the name of the table; $2, $3 and $4 are the names and types of its columns, and whether each is nullable.
-- Look the table up in pg_class: to_regclass also finds one that another transaction has just created, and whose columns
-- this statement does not see yet.
WITH root AS (SELECT oid AS root, relnamespace::regnamespace::text || '.plants' AS full_name
    FROM (VALUES (1)) AS one_row LEFT JOIN pg_class ON oid = to_regclass($1)),
tree AS (SELECT root AS t FROM root WHERE root IS NOT NULL UNION
    SELECT relid FROM root, pg_partition_tree(root)),
expected AS (SELECT * FROM unnest($2::text[], $3::text[], $4::boolean[]) AS expected (name, type, nullable)),
lacking AS (SELECT name, type, nullable AND attname IS NULL AS can_be_added FROM root CROSS JOIN expected
    LEFT JOIN pg_attribute ON attrelid = root AND attname = name AND NOT attisdropped
    WHERE root IS NOT NULL AND atttypid IS DISTINCT FROM type::regtype),
faults (priority, fault) AS (
SELECT 1, 'is in a database whose encoding is not UTF8' WHERE current_setting('server_encoding') <> 'UTF8'
UNION ALL SELECT 2, 'is UNLOGGED, or is no table' FROM pg_class, tree
    WHERE oid = t AND (relpersistence <> 'p' OR relkind NOT IN ('r', 'p'))
UNION ALL SELECT 3, 'lacks ' || string_agg(name || ' ' || type, ', ')
    FROM lacking WHERE NOT can_be_added HAVING count(*) > 0
UNION ALL SELECT 4, 'has no unique key on id alone' FROM root WHERE root IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index, pg_attribute WHERE indrelid = root AND attrelid = root AND attname = 'id' AND indisunique
    AND indisvalid AND indimmediate AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attnum)
UNION ALL SELECT 5, 'has the trigger ' || tgname FROM pg_trigger, tree WHERE tgrelid = t AND NOT tgisinternal
    AND tgenabled NOT IN ('D', 'R') AND tgtype & 4 > 0
UNION ALL SELECT 6, 'has the rule ' || rulename FROM pg_rewrite, tree WHERE ev_class = t AND ev_type = '3'
-- A table that lacks nothing may refuse plants, because it does so loudly; another one stays as it is.
UNION ALL SELECT 7, 'lacks a column, and would refuse every plant: the column ' || attname || ' has no default'
    FROM root, pg_attribute WHERE attrelid = root AND attnum > 0 AND attnotnull AND NOT (atthasdef OR attisdropped)
    AND attidentity = '' AND attname NOT IN (SELECT name FROM expected) AND EXISTS (SELECT FROM lacking))
SELECT (SELECT fault FROM faults ORDER BY priority LIMIT 1),
    (SELECT 'ALTER TABLE ' || full_name || ' ' || string_agg('ADD COLUMN IF NOT EXISTS ' || name || ' ' || type, ', ')
    FROM lacking WHERE can_be_added), full_name, quote_ident(current_user),
    EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') FROM root
