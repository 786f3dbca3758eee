#!lua flags=allow-oom
-- Give a running task back, not counted as a crash.
-- attempt, holder, seen_epoch, seen_seq, seen_op: what the writer shows (see refusal); wait_ms: it is not launched before that
-- (0: at once), for this reason, a word; retry_ms: how long it may be retried without a checkpoint (0: it is no retry);
-- retrying: what is retried, which begins anew when something else was before.
-- → launch n | waits launch look_ms (until it must be launched, or its deadline has passed) | spent (nothing was done)
--   | behind launch | fenced | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'fresh', 'deadline',
  'retrying_since', 'retrying')
wait_ms, retry_ms = tonumber(wait_ms), tonumber(retry_ms)
local deadline = tonumber(task[9]) or 0
local function released(launch)
  if wait_ms == 0 then
    return { 'launch', launch }
  end
  return { 'waits', launch, int(deadline > 0 and math.max(1, math.min(wait_ms, deadline + 1 - NOW)) or wait_ms) }
end
if task[3] == OP and task[2] == attempt then
  return released(task[7])
end
local no = refusal(task, attempt, holder, seen_epoch, seen_seq, seen_op)
local since = task[11] == retrying and tonumber(task[10]) or NOW
if no then
  return no
elseif retry_ms > 0 and NOW + wait_ms > since + retry_ms then
  return { 'spent' }
end
local launch = int(tonumber(task[5]) + 1)
redis.call('HDEL', TASK, 'lease', 'not_before', 'waits_for')
redis.call('HSET', TASK, 'status', 'queued', 'launch', launch, 'launched', int(NOW + wait_ms), 'op', OP, 'out', launch)
if wait_ms > 0 then
  redis.call('HSET', TASK, 'not_before', int(NOW + wait_ms), 'waits_for', reason)
end
if retry_ms > 0 then
  if task[11] ~= retrying then
    redis.call('HDEL', TASK, 'retries')
  end
  redis.call('HSET', TASK, 'retrying', retrying, 'retrying_since', int(since))
  redis.call('HINCRBY', TASK, 'retries', 1)
end
touch(task[8])
return released(launch)
