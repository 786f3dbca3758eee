#!lua flags=allow-oom
-- Give a running task back, not counted as a crash. ARGV 7 claim
-- → launch n | behind launch | fenced | ended | gone
local claim = claimed(ARGV[7])
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out')
if task[3] == OP and task[2] == claim.number then
  return { 'launch', task[7] }
end
local no = refusal(task, claim)
if no then
  return no
end
local launch = int(tonumber(task[5]) + 1)
redis.call('HDEL', TASK, 'lease')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'op', OP, 'out', launch)
touch(false)
return { 'launch', launch }
