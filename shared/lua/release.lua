#!lua flags=allow-oom
-- Give a running task back, not counted as a crash. ARGV 7 attempt
-- → launch n | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'out', 'launch')
if task[3] == OP and task[2] == ARGV[7] then
  return { 'launch', task[4] }
end
local no = refusal(task[1], task[2], ARGV[7], task[3])
if no then
  return { no }
end
local launch = int(tonumber(task[5]) + 1)
redis.call('HDEL', TASK, 'lease')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'op', OP, 'out', launch)
touch(false)
return { 'launch', launch }
