#!lua flags=allow-oom
-- Drop files that came ahead of a script which did not take them (stage.lua). Keys: files. digests: theirs.
-- Another script that is about to refer to one of them sends it again.
for index = digests_at, #ARGV do
  local digest = ARGV[index]
  if redis.call('HEXISTS', files, digest .. ':seq') == 0 then
    redis.call('HDEL', files, digest)
  end
end
return 1
