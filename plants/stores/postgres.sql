-- What there is to say against the table plants, the first thing first: it could refuse a plant, or lose one.
WITH t AS (SELECT to_regclass('plants')::oid AS t), own AS (SELECT a.*, attname IN ('id', 'name', 'tag') AS is_ours
    FROM pg_attribute a, t WHERE attrelid = t AND attnum > 0 AND NOT attisdropped)
SELECT 'is in a database whose encoding is not UTF8' WHERE current_setting('server_encoding') <> 'UTF8'
UNION ALL SELECT 'is gone' FROM t WHERE t IS NULL
UNION ALL SELECT 'is UNLOGGED, has row security, or is no table' FROM pg_class, t WHERE (oid = t OR oid IN
    (SELECT inhrelid FROM pg_inherits WHERE inhparent = t))
    AND (relpersistence <> 'p' OR relrowsecurity OR relkind NOT IN ('r', 'p'))
UNION ALL SELECT 'lacks one of id bigint, name text, tag text' WHERE (SELECT count(*) FROM own WHERE
    (attname, format_type(atttypid, atttypmod)) IN (('id', 'bigint'), ('name', 'text'), ('tag', 'text'))) < 3
UNION ALL SELECT 'wants another value in ' || attname FROM own WHERE CASE WHEN is_ours THEN attidentity = 'a' OR
    attgenerated <> '' OR attname = 'tag' AND attnotnull ELSE attnotnull AND NOT atthasdef AND attidentity = '' END
UNION ALL SELECT 'has no unique key on id alone' FROM t WHERE NOT EXISTS (SELECT FROM pg_index, own
    WHERE indrelid = t AND attname = 'id' AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL
    AND indnkeyatts = 1 AND indkey[0] = attnum)
UNION ALL SELECT 'has another unique key' FROM pg_index, own, t WHERE indrelid = t AND attname = 'id' AND indisunique
    AND NOT attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
UNION ALL SELECT 'has the constraint ' || conname FROM pg_constraint, t WHERE conrelid = t
    AND contype IN ('c', 'f', 'x')
UNION ALL SELECT 'has the trigger ' || tgname FROM pg_trigger, t WHERE tgrelid = t AND NOT tgisinternal
    AND tgenabled <> 'D' AND tgtype & 4 > 0
UNION ALL SELECT 'has the rule ' || rulename FROM pg_rewrite, t WHERE ev_class = t AND ev_type = '3'
UNION ALL SELECT 'is on a server with fsync = off' WHERE current_setting('fsync', true) = 'off'
