#!lua flags=allow-oom
-- Give a running task back, not counted as a crash. ARGV 7 to 10 what the writer shows
-- → launch n | behind launch | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'fresh')
if task[3] == OP and task[2] == ARGV[7] then
  return { 'launch', task[7] }
end
local no = refusal(task)
if no then
  return no
end
local launch = int(tonumber(task[5]) + 1)
redis.call('HDEL', TASK, 'lease')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'op', OP, 'out', launch)
touch(task[8])
return { 'launch', launch }
