#!lua flags=allow-oom
-- Change the record of an API key, unless somebody changed it since it was read.
-- KEYS 1 records by digest
-- ARGV 1 digest  2 record as it was read (empty: there was none)  3 record from now on (empty: none)
--   then digest and record of one that is kept with it
-- → 1, or 0: it was changed
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
if ARGV[4] then
  redis.call('HSET', KEYS[1], ARGV[4], ARGV[5])
end
return 1
