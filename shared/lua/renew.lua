#!lua flags=allow-oom
-- Keep a lease. ARGV 7 attempt
-- → ok | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt')
local no = refusal(task[1], task[2], ARGV[7])
if no then
  return { no }
end
redis.call('HSET', TASK, 'lease', int(NOW + LEASE))
touch(false)
return { 'ok' }
