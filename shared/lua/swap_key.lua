#!lua flags=allow-oom
-- Change the record of an API key, unless somebody changed it since it was read. Keys: records: by digest.
-- former: the record as it was read, empty: there was none; record: from now on, empty: none; more: digest and record of
-- a key that is kept with it (or nothing).
-- → 1, or 0: it was changed
if (redis.call('HGET', records, digest) or '') ~= former then
  return 0
end
if record == '' then
  redis.call('HDEL', records, digest)
else
  redis.call('HSET', records, digest, record)
end
if ARGV[more_at] then
  redis.call('HSET', records, ARGV[more_at], ARGV[more_at + 1])
end
return 1
