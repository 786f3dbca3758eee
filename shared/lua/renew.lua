#!lua flags=allow-oom
-- Keep a lease. ARGV 7 claim
-- → ok | behind launch | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder')
local no = refusal(task, claimed(ARGV[7]))
if no then
  return no
end
redis.call('HSET', TASK, 'lease', int(NOW + LEASE))
touch(false)
return { 'ok' }
