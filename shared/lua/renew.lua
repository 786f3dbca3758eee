#!lua flags=allow-oom
-- Keep a lease. ARGV 7 to 10 what the writer shows
-- → ok | behind launch | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'fresh')
local no = refusal(task)
if no then
  return no
end
redis.call('HSET', TASK, 'lease', int(NOW + LEASE))
touch(task[5])
return { 'ok' }
