#!lua flags=allow-oom
-- Keep a lease. attempt, holder, seen_epoch, seen_seq, seen_op: what the writer shows (see refusal).
-- → ok | behind launch | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'fresh')
local no = refusal(task, attempt, holder, seen_epoch, seen_seq, seen_op)
if no then
  return no
end
redis.call('HSET', TASK, 'lease', int(NOW + LEASE))
touch(task[5])
return { 'ok' }
