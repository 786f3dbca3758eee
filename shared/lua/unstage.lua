#!lua flags=allow-oom
-- Drop files that came ahead of a script which did not take them (stage.lua). KEYS 1 files  ARGV their digests
-- Another script that is about to refer to one of them sends it again.
for _, digest in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[1], digest .. ':seq') == 0 then
    redis.call('HDEL', KEYS[1], digest)
  end
end
return 1
