#!lua flags=allow-oom
-- Give a running task back, not counted as a crash.
-- attempt, holder, seen_epoch, seen_seq: what the writer shows (see refusal).
-- → launch n | behind launch | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'fresh')
if task[3] == OP and task[2] == attempt then
  return { 'launch', task[7] }
end
local no = refusal(task, attempt, holder, seen_epoch, seen_seq)
if no then
  return no
end
local launch = int(tonumber(task[5]) + 1)
redis.call('HDEL', TASK, 'lease')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW), 'op', OP, 'out', launch)
touch(task[8])
return { 'launch', launch }
