#!lua flags=allow-oom
-- Keep a process's sign of life, and add what it counted. KEYS 1 processes of its kind  2 totals
-- ARGV 1 process  2 sign of life  3… counter and how much more, for each
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
for index = 3, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[2], ARGV[index], ARGV[index + 1])
end
return 1
